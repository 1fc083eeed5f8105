//! The best plan of one candidate: strategies within memory and the error budget, then stages, then
//! what is encoded, then the schedule.

use std::ops::Range;

use super::candidate::Candidate;
use super::capacity::{Need, first_that_fits};
use super::chain::{Chain, Choice};
use super::evaluate::{Evaluated, better};
use super::load_balance::LoadBalance;
use super::memory_bound::MemoryShares;
use super::outcome::{Outcome, StageOutcome};
use super::overlap::Exposed;
use super::settings::{Recompute, Settings};
use crate::cost::{Cost, Costs};
use crate::error::TooLarge;
use crate::pipeline::{Schedule, cut, cut_by};
use crate::stage::{DEAR, Lack, Price, Rates, Weights, Within, within};

/// How often the price of losses is changed at most.
const ROUNDS: usize = 4;
/// The first price: what all losses of the choice without a budget cost together, in steps.
const FIRST: f64 = 0.1;
/// The last price, at which next to nothing is encoded.
const LAST: f64 = 1e3;

/// The part of a step that may hide exchanges exposed which what is hidden is looked at first.
const HIDDEN: f64 = 0.1;

/// How often stages are cut anew for what they give up.
const CUTS: usize = 2;

/// A candidate under evaluation.
pub(super) struct Evaluation<'a> {
    pub candidate: &'a Candidate,
    pub settings: &'a Settings,
    pub costs: &'a Costs<'a>,
    pub chain: &'a Chain<'a>,
    pub load_balance: Option<&'a LoadBalance<'a>>,
    pub recompute: Recompute,
    pub enough_s: &'a dyn Fn() -> f64,
}

impl Evaluation<'_> {
    /// Gradients travel exposed what backward hides, or they do not, and new parameters exposed what
    /// forward does: each is a problem whose solution bounds all others', so the next is solved only
    /// where those before say nothing. Where
    /// nothing is fast enough in turns, neither is it with zero-bubble, if all that a step has of
    /// it is so large a part: more micro-batches are in flight there, and no more fits.
    pub fn run(&self) -> Evaluated {
        let mut best = Evaluated::Impossible;
        let mut before: Option<(Vec<Schedule>, f64)> = None;
        for family in self.settings.schedules(self.candidate, self.chain.blocks()) {
            let implied_s = before.map_or(0.0, |(other, bound_s)| {
                let all = |family: &[Schedule]| self.weights(family, Exposed::ALL);
                bound_s * all(&family).least_part_of(&all(&other))
            });
            let verdict = match implied_s >= (self.enough_s)() {
                true => Evaluated::TooSlow(implied_s),
                false => self.of_family(&family),
            };
            before = match &verdict {
                Evaluated::TooSlow(bound_s) => Some((family, *bound_s)),
                _ => None,
            };
            best = better(best, verdict);
        }
        best
    }

    fn of_family(&self, family: &[Schedule]) -> Evaluated {
        let overlap = self.settings.overlap;
        // Of few micro-batches much is hidden: what the others take in full is a sharper bound.
        let few = overlap.sync > HIDDEN * self.candidate.micro_batches as f64;
        let mut best = Evaluated::Impossible;
        let mut solved = Vec::new();
        let mut next = if few { Exposed::NOTHING } else { Exposed::ALL };
        while !solved.contains(&next) {
            let verdict = self.solve(family, next);
            let outcome = match &verdict {
                Evaluated::Found(outcome) => outcome,
                Evaluated::TooSlow(_) if !solved.contains(&Exposed::ALL) => return verdict,
                _ => return better(best, verdict),
            };
            solved.push(next);
            next = match solved.contains(&Exposed::ALL) && overlap.sync > 0.0 {
                true => outcome.exposed(overlap),
                false => Exposed::ALL,
            };
            best = better(best, verdict);
        }
        best
    }

    /// What gradients lose has a price, as memory has: the choice that heeds no budget bounds all
    /// others and the one that encodes nothing keeps every budget; between them the price is found
    /// by bisection. Any price gives a bound.
    fn solve(&self, family: &[Schedule], exposed: Exposed) -> Evaluated {
        let free = self.at(family, exposed, 0.0);
        let Evaluated::Found(outcome) = &free else { return free };
        let (lost, seconds) = (outcome.choice.codec_error, outcome.seconds);
        if lost <= self.budget() {
            return free;
        }
        let scale = seconds / lost;
        let mut rates = Rates::from(FIRST * scale);
        let mut verdicts = vec![free, self.at(family, exposed, LAST * scale)];
        for _ in 0..ROUNDS {
            let verdict = self.at(family, exposed, rates.next);
            let found = match &verdict {
                Evaluated::Found(outcome) => Some(outcome.choice.codec_error <= self.budget()),
                _ => None,
            };
            verdicts.push(verdict);
            let Some(fits) = found else { break };
            rates.narrow(fits);
        }
        best_bounded(verdicts)
    }

    /// What gradients may lose, in elements.
    pub(super) fn budget(&self) -> f64 {
        self.settings.error_budget * self.chain.parameters()
    }

    /// The best plan where losing an element of a gradient costs so many seconds.
    fn at(&self, family: &[Schedule], exposed: Exposed, seconds_per_error: f64) -> Evaluated {
        let worth_s = seconds_per_error * self.budget();
        let device = &self.costs.device;
        let whole = device.capacity(device.memory_bytes, self.settings.reserve);
        let weights = Weights { codec_error: seconds_per_error, ..self.weights(family, exposed) };
        let mut shares = self.shares(family, &Cost::ZERO);
        let mut limit = whole;
        let mut bound_s = 0.0;
        // Other limits ask for the same rates again.
        let mut known: Vec<(f64, Price, Choice)> = Vec::new();
        let mut solve = |rate: f64| {
            if let Some((_, price, choice)) = known.iter().find(|(at, ..)| *at == rate) {
                return (*price, choice.clone());
            }
            let (mut price, choice) =
                self.chain.solve_any(&self.modes(weights, shares, rate), rate);
            if rate == 0.0 {
                let total = self.chain.costs(&choice).into_iter().sum();
                shares = self.shares(family, &total);
                price.bytes = self.modes(weights, shares, 0.0)[0].price(&total).bytes;
            }
            price.seconds -= worth_s;
            known.push((rate, price, choice.clone()));
            (price, choice)
        };
        // What stages need exposed their shares is taken off the limit, twice at most.
        for _ in 0..3 {
            let found = match within(limit, (self.enough_s)(), &mut solve) {
                Ok(found) => found,
                Err(Lack::Bytes(_)) => break,
                Err(Lack::Seconds(seconds)) if limit == whole => {
                    return Evaluated::TooSlow(seconds);
                }
                // What takes more than this limit may fit all the same.
                Err(Lack::Seconds(_)) => break,
            };
            if limit == whole {
                bound_s = found.bound_s;
            }
            let fastest = (found.seconds_per_byte > 0.0).then(|| solve(0.0).1);
            let thrifty = fastest
                .and_then(|choice| self.outcome(family, &Within { choice, ..found.clone() }));
            let outcome = self.outcome(family, &found);
            let Some(outcome) = outcome.into_iter().chain(thrifty).reduce(|a, b| self.fitter(a, b))
            else {
                return Evaluated::Impossible;
            };
            let over = outcome.over(self.settings.reserve);
            if over <= 0.0 {
                return Evaluated::Found(Box::new(outcome));
            }
            limit -= over;
        }
        let (fastest, _) = solve(0.0);
        let (price, choice) = solve(DEAR);
        let bound_s = fastest.seconds.max(bound_s);
        let (saved, spent_s) = (fastest.bytes - price.bytes, price.seconds - fastest.seconds);
        let seconds_per_byte = if saved > 0.0 { spent_s.max(0.0) / saved } else { 0.0 };
        self.smallest(family, &Within { price, choice, bound_s, seconds_per_byte })
    }

    /// The plan with the smallest choice, or by how much it does not fit.
    fn smallest(&self, family: &[Schedule], choice: &Within<Choice>) -> Evaluated {
        let Some(outcome) = self.outcome(family, choice) else { return Evaluated::Impossible };
        if outcome.over(self.settings.reserve) <= 0.0 {
            return Evaluated::Found(Box::new(outcome));
        }
        // Where kinds differ, this is a device with the largest memory of any.
        let device = &self.costs.device;
        let whole = device.capacity(device.memory_bytes, self.settings.reserve);
        let none_fits = choice.price.bytes > whole;
        Evaluated::TooLarge(TooLarge {
            needed_bytes: outcome.bytes(),
            least_bytes: device.taken(choice.price.bytes),
            bound_s: if none_fits { f64::INFINITY } else { choice.bound_s },
        })
    }

    /// The one that fits; of two that do, the faster one.
    pub(super) fn fitter(&self, one: Outcome, other: Outcome) -> Outcome {
        let key = |plan: &Outcome| (plan.over(self.settings.reserve).max(0.0), plan.seconds);
        let (best, left) = if key(&other) < key(&one) { (other, one) } else { (one, other) };
        if left.over(self.settings.reserve) <= 0.0 { best.beside(left) } else { best }
    }

    /// A step's seconds where all stages get equal shares: no cut and no schedule of the family
    /// takes less.
    fn weights(&self, family: &[Schedule], exposed: Exposed) -> Weights {
        let (p, m) = (self.candidate.stages as f64, self.candidate.micro_batches as f64);
        let chunks = family.iter().map(|schedule| schedule.chunks()).max().unwrap_or(1) as f64;
        let apart = family.contains(&Schedule::ZeroBubble);
        let rounds = (m + (p - 1.0) / chunks) / p;
        let once = |counts: bool| if counts { 1.0 / p } else { 0.0 };
        // The orders of a family agree in what they hide.
        let overlap = self.settings.overlap.under(family[0]);
        let gradients = once(exposed.sync) * overlap.sync;
        Weights {
            forward: rounds - once(exposed.all_gather) * overlap.all_gather,
            forward_wire: rounds,
            backward: if apart { m / p } else { rounds } - gradients,
            backward_wire: rounds,
            overlapped: if apart { rounds } else { 0.0 } + gradients,
            gather: rounds,
            step: 1.0 / p,
            sync: once(exposed.sync),
            handling: once(!exposed.sync),
            all_gather: once(exposed.all_gather),
            all_gather_handling: once(!exposed.all_gather),
            ..Weights::ONCE
        }
    }

    /// How costs count in blocks that keep what backward reads, and in those that compute it again.
    fn modes(&self, weights: Weights, shares: MemoryShares, rate: f64) -> Vec<Weights> {
        let keep = Weights {
            state: shares.state,
            activation: shares.activation,
            checkpoint: 0.0,
            ..weights
        };
        // What hides new parameters is the first forward, not the second.
        let (forward, forward_wire) =
            (weights.forward + weights.forward_wire, 2.0 * weights.forward_wire);
        let (activation, checkpoint) = (shares.scratch, shares.activation);
        let recompute = Weights { forward, forward_wire, activation, checkpoint, ..keep };
        match self.recompute {
            Recompute::Never => vec![keep],
            Recompute::Free if rate == 0.0 => vec![keep],
            Recompute::Free => vec![keep, recompute],
            Recompute::Always => vec![recompute],
        }
    }

    /// How much of what all blocks keep together no cut takes off the fullest stage.
    fn shares(&self, family: &[Schedule], total: &Cost) -> MemoryShares {
        let in_flight = self.in_flight(family);
        let blocks = self.chain.blocks() - in_flight.len() + 1;
        let kept = if self.recompute == Recompute::Always {
            total.checkpoint_bytes
        } else {
            total.activation_bytes
        };
        MemoryShares::tightest(&in_flight, blocks as f64, [total.state_bytes, kept])
    }

    /// For every stage the micro-batches that wait for backward under any schedule of a family.
    fn in_flight(&self, family: &[Schedule]) -> Vec<f64> {
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        let in_flight = |rank: usize| {
            let of = |schedule: &Schedule| schedule.in_flight(rank, stages, micro_batches);
            family.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        (0..stages).map(in_flight).collect()
    }

    fn outcome(&self, family: &[Schedule], found: &Within<Choice>) -> Option<Outcome> {
        let always = self.recompute == Recompute::Always;
        let micro = |cost: Cost| if always { cost.recomputed() } else { cost }.micro_s();
        let micro: Vec<f64> = self.chain.costs(&found.choice).into_iter().map(micro).collect();
        let cuts = match self.load_balance {
            Some(load_balance) => load_balance.cut((&found.choice, always), &|_, _| 0)?,
            None => cut(&micro, self.candidate.stages)?,
        };
        let mut best = self.staged(&found.choice, &cuts, family)?;
        if best.over(self.settings.reserve) > 0.0
            && let Some(cuts) = self.cut_that_fits(&found.choice, &micro, family)
        {
            best = self.fitter(best, self.staged(&found.choice, &cuts, family)?);
        }
        for _ in 0..CUTS {
            let Some(cuts) = self.recut(&best, &micro) else { break };
            let next = self.staged(&found.choice, &cuts, family)?;
            best = self.fitter(best, next);
        }
        let Within { bound_s, seconds_per_byte, .. } = *found;
        Some(Outcome { seconds_per_byte, ..best.bounded(bound_s) })
    }

    /// The fastest cut of which every stage fits its memory, if there is one.
    fn cut_that_fits(
        &self,
        choice: &Choice,
        micro: &[f64],
        family: &[Schedule],
    ) -> Option<Vec<Range<usize>>> {
        let needs = Need::of_blocks((self.chain, choice), &self.chain.costs(choice));
        let in_flight = self.in_flight(family);
        let room = |stage: usize, end: usize| {
            let device = &self.costs.device;
            let bytes = device.capacity(self.memory_bytes(stage), self.settings.reserve);
            first_that_fits(&needs, end, bytes, (in_flight[stage], self.recompute))
        };
        match self.load_balance {
            Some(load_balance) => {
                load_balance.cut((choice, self.recompute == Recompute::Always), &room)
            }
            None => cut_by(&|_, block| micro[block], &room, [micro.len(), in_flight.len()]),
        }
    }

    /// Other cuts, where stages have given up unequally much; none where they have not.
    fn recut(&self, outcome: &Outcome, micro: &[f64]) -> Option<Vec<Range<usize>>> {
        if self.load_balance.is_some() || outcome.stages.len() == 1 {
            return None;
        }
        let slower = |stage: &StageOutcome| {
            stage.cost.micro_s() / micro[stage.blocks.clone()].iter().sum::<f64>()
        };
        let slower: Vec<f64> = outcome.stages.iter().map(slower).collect();
        let least = slower.iter().copied().fold(f64::INFINITY, f64::min);
        let uneven = slower.iter().any(|one| *one > least * (1.0 + 1e-9));
        let seconds = |stage: usize, block: usize| slower[stage] * micro[block];
        let cuts = || cut_by(&seconds, &|_, _| 0, [micro.len(), slower.len()]);
        let cuts = if uneven { cuts() } else { None };
        cuts.filter(|cuts| cuts.iter().zip(&outcome.stages).any(|(a, b)| *a != b.blocks))
    }
}

/// The fastest of the plans at several prices of losses, with the best of their bounds, which holds
/// for all of them: at a high price the bound of that price alone may say nothing.
fn best_bounded(verdicts: Vec<Evaluated>) -> Evaluated {
    let bound = |verdict: &Evaluated| match verdict {
        Evaluated::Found(outcome) => outcome.bound_s,
        Evaluated::TooSlow(seconds) => *seconds,
        Evaluated::TooLarge(_) | Evaluated::Impossible => 0.0,
    };
    let bound_s = verdicts.iter().map(bound).fold(0.0, f64::max);
    let bounded = |verdict: Evaluated| match verdict {
        Evaluated::Found(outcome) => Evaluated::Found(Box::new(outcome.bounded(bound_s))),
        Evaluated::TooSlow(_) => Evaluated::TooSlow(bound_s),
        Evaluated::TooLarge(all) => {
            Evaluated::TooLarge(TooLarge { bound_s: all.bound_s.max(bound_s), ..all })
        }
        Evaluated::Impossible => Evaluated::Impossible,
    };
    verdicts.into_iter().map(bounded).fold(Evaluated::Impossible, better)
}
