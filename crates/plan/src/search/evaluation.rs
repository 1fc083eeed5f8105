//! Evaluation of one candidate: strategies, then stages, then codecs, then the schedule.
//!
//! Memory, the error budget, overlap and the cut into stages couple the strategies of all blocks. The search
//! solves four nested relaxations instead. Each drops one coupling, so that the rest can be solved block by
//! block, and its optimum is a lower bound for all plans that keep the coupling:
//!
//! | relaxation | drops | bounds |
//! |---|---|---|
//! | [`Evaluation::run`]: a family of schedules | that a plan has one schedule: the family counts the shortest fill and the fewest micro-batches in flight of any | every schedule of the family |
//! | [`Evaluation::of_family`]: exposed communication | the maximum of communication and the computation that overlaps it: one side of it is assumed | every plan, since a maximum is no less than either side |
//! | [`Evaluation::solve`]: a price of codec error | the error budget (Lagrange multiplier) | every plan within the budget, at any price |
//! | [`Evaluation::at`]: a price of memory | the stages' limits, which become one for all blocks together (`memory_bound`) at a price per byte (`stage::within`) | every plan that fits, at any price |
//!
//! Inside all four, [`Evaluation::weights`] gives every stage an equal share of the time, which
//! bounds every cut into stages. [`Evaluation::outcome`] then builds a real plan from the
//! strategies of a relaxation: whole blocks per stage, memory fitted stage by stage, codecs within
//! the budget.

use std::ops::Range;

use super::capacity::{Need, first_that_fits};
use super::chain::Chosen;
use super::evaluate::better;
use super::load_balance::LoadBalance;
use super::memory_bound::MemoryShares;
use super::{
    Candidate, Chain, Choice, Evaluated, Exposed, Outcome, Recompute, Settings, StageOutcome,
};
use crate::TooLarge;
use crate::cost::{Cost, Costs};
use crate::pipeline::{Schedule, cut, cut_by};
use crate::stage::{DEAR, Lack, Price, Rates, Weights, Within, within};

/// Largest number of changes of the price of codec error.
const ROUNDS: usize = 4;
/// First price of codec error: at this price, the error of the choice without a budget costs this part of a
/// step.
const FIRST: f64 = 0.1;
/// Last price of codec error, in the unit of [`FIRST`], at which almost nothing is encoded.
const LAST: f64 = 1e3;

/// Overlapped part of a step above which the relaxation with hidden communication is solved first.
const HIDDEN: f64 = 0.1;

/// Largest number of cuts into stages after the first one, to account for memory fitting.
const CUTS: usize = 2;

/// Candidate under evaluation.
pub(super) struct Evaluation<'a> {
    pub candidate: &'a Candidate,
    pub settings: &'a Settings,
    pub costs: &'a Costs<'a>,
    pub chain: &'a Chain<'a>,
    pub load_balance: Option<&'a LoadBalance<'a>>,
    pub recompute: Recompute,
    /// Step time in seconds from which on a plan is useless. It may fall during the evaluation.
    pub enough_s: &'a dyn Fn() -> f64,
}

impl Evaluation<'_> {
    /// Returns the best plan over all families of schedules.
    ///
    /// If the bound of a family is too slow, it implies a bound for the next family: there, each cost
    /// has at least a known fraction of its weight here, and no additional strategies fit, since
    /// zero-bubble has more micro-batches in flight than 1F1B.
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

    /// Returns the best plan of a family over the cases of exposed communication.
    ///
    /// The synchronisation of gradients is either hidden by the backward pass or exposed, and the
    /// all-gather of updated parameters is either hidden by the next forward pass or exposed. The
    /// solution of each case bounds all plans. If the plan that is found contradicts the assumed case,
    /// its own case is solved next.
    fn of_family(&self, family: &[Schedule]) -> Evaluated {
        let overlap = self.settings.overlap;
        // With few micro-batches much is hidden: assuming it hidden then gives the sharper bound.
        let few = overlap.sync > HIDDEN * self.candidate.micro_batches as f64;
        let mut best = Evaluated::Impossible;
        let mut solved = Vec::new();
        let mut next = if few { Exposed::NOTHING } else { Exposed::ALL };
        while !solved.contains(&next) {
            let verdict = self.solve(family, next);
            let outcome = match &verdict {
                Evaluated::Found(outcome) => outcome,
                // The first bound alone holds for all plans of the family, so no other case can be
                // faster.
                Evaluated::TooSlow(_) if !solved.contains(&Exposed::ALL) => return verdict,
                _ => return better(best, verdict),
            };
            solved.push(next);
            next = match solved.contains(&Exposed::ALL) && overlap.sync > 0.0 {
                // The plan itself says what is exposed: if that case is solved already, it is
                // consistent.
                true => outcome.exposed(overlap),
                false => Exposed::ALL,
            };
            best = better(best, verdict);
        }
        best
    }

    /// Returns the best plan within the error budget. Bisection finds the price of codec error. At one
    /// end, the choice ignores the budget, and its bound holds for all plans; at the other end, the
    /// choice encodes almost nothing and keeps every budget.
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
            let lost = match &verdict {
                Evaluated::Found(outcome) => Some(outcome.choice.codec_error),
                _ => None,
            };
            verdicts.push(verdict);
            // Too slow or too large at this price: a higher price is slower, a lower one has a
            // bound.
            let Some(lost) = lost else { break };
            rates.narrow(lost, self.budget());
        }
        best_bounded(verdicts)
    }

    /// Returns the codec error that gradients may have, in elements of parameters.
    pub(super) fn budget(&self) -> f64 {
        self.settings.error_budget * self.chain.parameters()
    }

    /// Returns the best plan if codec error costs `seconds_per_error` seconds per element.
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
            // The first solution says which shares bound memory best; later rates are solved with
            // them.
            if rate == 0.0 {
                let total = self.chain.costs(&choice).into_iter().sum();
                shares = self.shares(family, &total);
                price.bytes = self.modes(weights, shares, 0.0)[0].price(&total).bytes;
            }
            // The Lagrangian takes back what the whole budget is worth.
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
            // Only the solution at the true limit bounds all plans; smaller limits are a heuristic.
            if limit == whole {
                bound_s = found.bound_s;
            }
            // Memory fitting may make the fastest strategies fit at less cost than the price of all
            // blocks.
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
            // A stage needs more than its share: ask for that much less in total.
            limit -= over;
        }
        // No limit gave a plan that fits: try the smallest strategies.
        let (fastest, _) = solve(0.0);
        let (price, choice) = solve(DEAR);
        let bound_s = fastest.seconds.max(bound_s);
        let (saved, spent_s) = (fastest.bytes - price.bytes, price.seconds - fastest.seconds);
        let seconds_per_byte = if saved > 0.0 { spent_s.max(0.0) / saved } else { 0.0 };
        self.smallest(family, &Within { price, choice, bound_s, seconds_per_byte })
    }

    /// Returns the plan with the smallest strategies, or the memory that it lacks.
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

    /// Returns the plan that fits; if both do, the faster one.
    pub(super) fn fitter(&self, one: Outcome, other: Outcome) -> Outcome {
        let key = |plan: &Outcome| (plan.over(self.settings.reserve).max(0.0), plan.seconds);
        let (best, left) = if key(&other) < key(&one) { (other, one) } else { (one, other) };
        if left.over(self.settings.reserve) <= 0.0 { best.beside(left) } else { best }
    }

    /// Returns the weights of costs in a step if every stage has an equal share. No cut and no schedule of
    /// the family takes less time.
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

    /// Returns the weights of blocks that keep their activations, and of blocks that recompute
    /// them.
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

    /// Returns the smallest part of the bytes of all blocks that the fullest stage can have under any
    /// cut.
    fn shares(&self, family: &[Schedule], total: &Cost) -> MemoryShares {
        let in_flight = self.in_flight(family);
        let blocks = self.chain.blocks() - in_flight.len() + 1;
        // The solution that `total` comes from recomputes all blocks or none (`modes` at rate 0).
        let kept = if self.recompute == Recompute::Always {
            total.checkpoint_bytes
        } else {
            total.activation_bytes
        };
        MemoryShares::tightest(&in_flight, blocks as f64, [total.state_bytes, kept])
    }

    /// Returns, for every stage, the fewest micro-batches whose activations wait for the backward pass, under
    /// any schedule of a family.
    fn in_flight(&self, family: &[Schedule]) -> Vec<f64> {
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        let in_flight = |rank: usize| {
            let of = |schedule: &Schedule| schedule.in_flight(rank, stages, micro_batches);
            family.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        (0..stages).map(in_flight).collect()
    }

    /// Returns a plan with the strategies of a relaxation, or `None` if its blocks cannot be cut into stages.
    fn outcome(&self, family: &[Schedule], found: &Within<Choice>) -> Option<Outcome> {
        let micro = |cost: Cost| self.recompute.of_all(cost).micro_s();
        let micro: Vec<f64> = self.chain.costs(&found.choice).into_iter().map(micro).collect();
        let cuts = match self.load_balance {
            Some(load_balance) => load_balance.cut(&found.choice, self.recompute, &|_, _| 0)?,
            None => cut(&micro, self.candidate.stages)?,
        };
        let mut best = self.staged(&found.choice, &cuts, family)?;
        // The fastest cut overfills a stage: try one that leaves memory where it is needed.
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

    /// Returns the fastest cut in which every stage fits its memory, if there is one.
    fn cut_that_fits(
        &self,
        choice: &Choice,
        micro: &[f64],
        family: &[Schedule],
    ) -> Option<Vec<Range<usize>>> {
        let needs =
            Need::of_blocks(Chosen { chain: self.chain, choice }, &self.chain.costs(choice));
        let in_flight = self.in_flight(family);
        let capacity = |stage: usize, end: usize| {
            let device = &self.costs.device;
            let bytes = device.capacity(self.memory_bytes(stage), self.settings.reserve);
            first_that_fits(&needs, end, bytes, in_flight[stage], self.recompute)
        };
        match self.load_balance {
            Some(load_balance) => load_balance.cut(choice, self.recompute, &capacity),
            None => cut_by(&|_, block| micro[block], &capacity, [micro.len(), in_flight.len()]),
        }
    }

    /// Returns another cut if memory fitting has slowed the stages unequally, and there is one.
    fn recut(&self, outcome: &Outcome, micro: &[f64]) -> Option<Vec<Range<usize>>> {
        // Load balancing has its own cut, and one stage has none.
        if self.load_balance.is_some() || outcome.stages.len() == 1 {
            return None;
        }
        let slower = |stage: &StageOutcome| {
            stage.cost.micro_s() / micro[stage.blocks.clone()].iter().sum::<f64>()
        };
        let slower: Vec<f64> = outcome.stages.iter().map(slower).collect();
        let least = slower.iter().copied().fold(f64::INFINITY, f64::min);
        // Sums of equal times differ by rounding.
        let uneven = slower.iter().any(|one| *one > least * (1.0 + 1e-9));
        let seconds = |stage: usize, block: usize| slower[stage] * micro[block];
        // Room is no limit here: memory is fitted once more to the new stages.
        let cuts = || cut_by(&seconds, &|_, _| 0, [micro.len(), slower.len()]);
        let cuts = if uneven { cuts() } else { None };
        cuts.filter(|cuts| cuts.iter().zip(&outcome.stages).any(|(a, b)| *a != b.blocks))
    }
}

/// Returns the fastest of the plans at several prices of codec error, with the best of their bounds. Every
/// bound holds for all of them, and the bound at a high price may be weak.
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
