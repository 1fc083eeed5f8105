//! The best plan of one candidate: strategies within memory and the error budget, then stages, then
//! what is encoded, then the schedule.

use std::ops::Range;

use super::candidate::Candidate;
use super::carry::{Terms, carry};
use super::chain::{Chain, Choice};
use super::evaluate::{Verdict, better};
use super::outcome::{Outcome, StageOutcome, estimate_s};
use super::relax::Shares;
use super::settings::{Recompute, Settings};
use super::spread::{Assigned, Spread};
use super::thrift::{Limits, Spared, Treated, scratch_bytes, spare, spared_costs};
use crate::cost::{Carriage, Cost, Costs, Group, Message};
use crate::pipeline::{Schedule, cut, cut_by};
use crate::stage::{Lack, Price, Rates, Weights, Within, within};

/// How often the price of losses is changed at most.
const ROUNDS: usize = 4;
/// The first price: what all losses of the choice without a budget cost together, in steps.
const FIRST: f64 = 0.1;
/// The last price, at which next to nothing is encoded.
const DEAR: f64 = 1e3;

/// How often stages are cut anew for what they give up.
const CUTS: usize = 2;

/// A candidate under evaluation.
pub(super) struct Evaluation<'a> {
    pub candidate: &'a Candidate,
    pub settings: &'a Settings,
    pub costs: &'a Costs<'a>,
    pub chain: &'a Chain<'a>,
    pub spread: Option<&'a Spread<'a>>,
    pub recompute: Recompute,
    /// What is given up, where that is no question any more.
    pub given: Option<&'a Spared>,
    pub enough_s: &'a dyn Fn() -> f64,
}

impl Evaluation<'_> {
    /// Gradients travel beyond what backward hides, or they do not: either is a problem whose
    /// solution bounds the other's, so the second is solved only where the first says nothing.
    pub fn run(&self) -> Verdict {
        let mut best = Verdict::Impossible;
        for family in self.families() {
            best = better(best, self.of_family(&family));
        }
        best
    }

    fn of_family(&self, family: &[Schedule]) -> Verdict {
        let exposed = self.solve(family, 1.0);
        let overlap = self.settings.overlap;
        let hidden = match &exposed {
            Verdict::Found(outcome) => {
                overlap.sync > 0.0 && outcome.stages.iter().all(|stage| stage.is_hidden(overlap))
            }
            _ => false,
        };
        if hidden { better(exposed, self.solve(family, 0.0)) } else { exposed }
    }

    /// What gradients lose has a price, as memory has: the choice that heeds no budget bounds all
    /// others and the one that encodes nothing keeps every budget; between them the price is found
    /// by bisection. Any price gives a bound.
    fn solve(&self, family: &[Schedule], exposed: f64) -> Verdict {
        let free = self.at(family, exposed, 0.0);
        let Verdict::Found(outcome) = &free else { return free };
        let (lost, seconds) = (outcome.choice.loss, outcome.seconds);
        if lost <= self.budget() {
            return free;
        }
        let scale = seconds / lost;
        let mut rates = Rates::from(FIRST * scale);
        let mut verdicts = vec![free, self.at(family, exposed, DEAR * scale)];
        for _ in 0..ROUNDS {
            let verdict = self.at(family, exposed, rates.next);
            match &verdict {
                Verdict::Found(outcome) => rates.narrow(outcome.choice.loss <= self.budget()),
                _ => return best_bounded(verdicts, Some(verdict)),
            }
            verdicts.push(verdict);
        }
        best_bounded(verdicts, None)
    }

    /// What gradients may lose, in elements.
    fn budget(&self) -> f64 {
        self.settings.error_budget * self.chain.parameters()
    }

    /// The best plan where losing an element of a gradient costs so many seconds.
    fn at(&self, family: &[Schedule], exposed: f64, seconds_per_loss: f64) -> Verdict {
        let worth_s = seconds_per_loss * self.budget();
        let device = &self.costs.device;
        let whole = device.room(device.memory_bytes, self.settings.reserve);
        let weights = Weights { loss: seconds_per_loss, ..self.weights(family, exposed) };
        let mut shares = self.shares(family, &Cost::ZERO);
        let mut limit = whole;
        let mut verdict = Verdict::Impossible;
        let mut fastest = None;
        let mut bound_s = 0.0;
        // What stages need beyond their shares is taken off the limit, twice at most.
        for _ in 0..3 {
            let solve = |rate: f64| {
                let (mut price, choice) =
                    self.chain.solve_any(&self.modes(weights, shares, rate), rate);
                if rate == 0.0 {
                    let total = self.chain.costs(&choice).into_iter().sum();
                    shares = self.shares(family, &total);
                    price.bytes = self.modes(weights, shares, 0.0)[0].price(&total).bytes;
                    fastest = Some(choice.clone());
                }
                (Price { seconds: price.seconds - worth_s, ..price }, choice)
            };
            let found = match within(limit, (self.enough_s)(), solve) {
                Ok(found) => found,
                Err(Lack::Bytes(bytes)) => {
                    let taken = device.taken(bytes + whole - limit);
                    return better(verdict, Verdict::TooLarge(taken));
                }
                Err(Lack::Seconds(seconds)) if limit == whole => return Verdict::TooSlow(seconds),
                Err(Lack::Seconds(_)) => return better(verdict, Verdict::TooSlow(bound_s)),
            };
            if limit == whole {
                bound_s = found.bound_s;
            }
            let thrifty = fastest.take().filter(|_| found.seconds_per_byte > 0.0);
            let thrifty = thrifty
                .and_then(|choice| self.outcome(family, &Within { choice, ..found.clone() }));
            let outcome = self.outcome(family, &found);
            let Some(outcome) = outcome.into_iter().chain(thrifty).reduce(|a, b| self.fitter(a, b))
            else {
                return verdict;
            };
            let over = outcome.over(self.settings.reserve);
            if over <= 0.0 {
                return Verdict::Found(Box::new(outcome));
            }
            verdict = better(verdict, Verdict::TooLarge(device.taken(whole) + over));
            limit -= over;
        }
        verdict
    }

    /// The one that fits; of two that do, the faster one.
    fn fitter(&self, one: Outcome, other: Outcome) -> Outcome {
        let key = |plan: &Outcome| (plan.over(self.settings.reserve).max(0.0), plan.seconds);
        if key(&other) < key(&one) { other } else { one }
    }

    /// A step's seconds where all stages get equal shares: no cut and no schedule of the family
    /// takes less.
    fn weights(&self, family: &[Schedule], exposed: f64) -> Weights {
        let (p, m) = (self.candidate.stages as f64, self.candidate.micro_batches as f64);
        let chunks = family.iter().map(|schedule| schedule.chunks()).max().unwrap_or(1) as f64;
        let apart = family.contains(&Schedule::ZeroBubble);
        let rounds = (m + (p - 1.0) / chunks) / p;
        Weights {
            forward: rounds,
            backward: if apart { m / p } else { rounds } - exposed * self.settings.overlap.sync / p,
            backward_wire: rounds,
            gather: rounds,
            step: 1.0 / p,
            sync: exposed / p,
            handling: (1.0 - exposed) / p,
            ..Weights::ONCE
        }
    }

    /// How costs count in blocks that keep what backward reads, and in those that compute it again.
    fn modes(&self, weights: Weights, shares: Shares, rate: f64) -> Vec<Weights> {
        let keep = Weights { state: shares.state, kept: shares.kept, entry: 0.0, ..weights };
        let (forward, scratch) = (2.0 * weights.forward, shares.scratch);
        let again = Weights { forward, kept: scratch, entry: shares.kept, ..keep };
        match self.recompute {
            Recompute::Never => vec![keep],
            Recompute::Free if rate == 0.0 => vec![keep],
            Recompute::Free => vec![keep, again],
            Recompute::Always => vec![again],
        }
    }

    /// How much of what all blocks keep together no cut takes off the fullest stage.
    fn shares(&self, family: &[Schedule], total: &Cost) -> Shares {
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        let in_flight = |rank: usize| {
            let of = |schedule: &Schedule| schedule.in_flight(rank, stages, micro_batches);
            family.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        let in_flight: Vec<f64> = (0..stages).map(in_flight).collect();
        let blocks = self.chain.blocks() - stages + 1;
        let kept =
            if self.recompute == Recompute::Always { total.entry_bytes } else { total.kept_bytes };
        Shares::tightest(&in_flight, blocks as f64, [total.state_bytes, kept])
    }

    fn outcome(&self, family: &[Schedule], found: &Within<Choice>) -> Option<Outcome> {
        let always = self.recompute == Recompute::Always;
        let micro = |cost: Cost| if always { cost.recomputed() } else { cost }.micro_s();
        let micro: Vec<f64> = self.chain.costs(&found.choice).into_iter().map(micro).collect();
        let cuts = match self.spread {
            Some(spread) => spread.cut(&found.choice, always)?,
            None => cut(&micro, self.candidate.stages)?,
        };
        let mut best = self.staged(&found.choice, &cuts, family)?;
        for _ in 0..CUTS {
            let Some(cuts) = self.recut(&best, &micro) else { break };
            let next = self.staged(&found.choice, &cuts, family)?;
            best = self.fitter(best, next);
        }
        let Within { bound_s, seconds_per_byte, .. } = *found;
        Some(Outcome { bound_s, seconds_per_byte, ..best })
    }

    /// Other cuts, where stages have given up unequally much; none where they have not.
    fn recut(&self, outcome: &Outcome, micro: &[f64]) -> Option<Vec<Range<usize>>> {
        if self.spread.is_some() || outcome.stages.len() == 1 {
            return None;
        }
        let slower = |stage: &StageOutcome| {
            stage.cost.micro_s() / micro[stage.blocks.clone()].iter().sum::<f64>()
        };
        let slower: Vec<f64> = outcome.stages.iter().map(slower).collect();
        let least = slower.iter().copied().fold(f64::INFINITY, f64::min);
        let uneven = slower.iter().any(|one| *one > least * (1.0 + 1e-9));
        let seconds = |stage: usize, block: usize| slower[stage] * micro[block];
        let cuts = || cut_by(&seconds, micro.len(), slower.len());
        let cuts = if uneven { cuts() } else { None };
        cuts.filter(|cuts| cuts.iter().zip(&outcome.stages).any(|(a, b)| *a != b.blocks))
    }

    /// The best schedule for strategies in given stages, with what is best given up for memory and
    /// encoded.
    pub fn staged(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        family: &[Schedule],
    ) -> Option<Outcome> {
        let all = family.iter().map(|schedule| self.scheduled(choice, cuts, *schedule));
        all.reduce(|best, next| self.fitter(best, next))
    }

    fn scheduled(&self, choice: &Choice, cuts: &[Range<usize>], schedule: Schedule) -> Outcome {
        let Assigned { blocks: whole, shares, rounds } = self.assign(choice, cuts, schedule);
        let mut spared = self.spared(choice, cuts, schedule, &whole);
        let mut blocks = spared_costs((self.chain, choice), &whole, &spared);
        let all = |blocks: &[Cost], spared: &Spared| -> Vec<StageOutcome> {
            let stage = |(rank, range): (usize, &Range<usize>)| {
                let again = &spared.again[range.clone()];
                let block_kept_bytes = scratch_bytes(&whole[range.clone()], again);
                let stage = self.stage(choice, blocks, range, schedule, rank);
                StageOutcome { block_kept_bytes, ..stage }
            };
            cuts.iter().enumerate().map(stage).collect()
        };
        let mut stages = all(&blocks, &spared);
        if !self.settings.codings.is_empty() {
            let terms = self.terms(&stages);
            carry(self.chain, choice, cuts, &terms, (&mut spared.treated, &mut blocks));
            stages = all(&blocks, &spared);
        }
        spared.treated.sort_by_key(|one| (one.block, one.tensor));
        Outcome {
            candidate: self.candidate.clone(),
            schedule,
            choice: choice.clone(),
            spared,
            shares,
            rounds,
            seconds: estimate_s(&stages, schedule, rounds, self.settings.overlap),
            stages,
            bound_s: 0.0,
            left_s: f64::INFINITY,
            seconds_per_byte: 0.0,
        }
    }

    /// What stages give up so that they fit.
    fn spared(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        schedule: Schedule,
        whole: &[Cost],
    ) -> Spared {
        if let Some(given) = self.given {
            return self.again(choice, given);
        }
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        let mut spared = Spared { again: vec![false; whole.len()], treated: Vec::new() };
        for (rank, blocks) in cuts.iter().enumerate() {
            let limits = Limits {
                rounds: micro_batches as f64,
                in_flight: schedule.in_flight(rank, stages, micro_batches),
                bytes: self.costs.device.room(self.memory_bytes(rank), self.settings.reserve),
                recompute: self.recompute,
            };
            spare((self.chain, choice), blocks, limits, whole, &mut spared);
        }
        spared
    }

    /// The same given up on this chain; what is encoded is not given.
    fn again(&self, choice: &Choice, given: &Spared) -> Spared {
        let here = |treated: &Treated| {
            let raw = Carriage { coding: None, ..treated.carriage };
            let raw = Treated { carriage: raw, ..*treated };
            Some(Treated { carriage: *self.chain.like(choice, &raw)?, ..raw })
        };
        let treated = given.treated.iter().filter_map(here).collect();
        Spared { again: given.again.clone(), treated }
    }

    /// What blocks cost where it takes longest, and who does how many micro-batches.
    fn assign(&self, choice: &Choice, cuts: &[Range<usize>], schedule: Schedule) -> Assigned {
        let rounds = self.candidate.micro_batches;
        let always = self.recompute == Recompute::Always;
        match self.spread {
            Some(spread) => spread.assign(choice, cuts, schedule, (rounds, always)),
            None => Assigned { blocks: self.chain.costs(choice), shares: Vec::new(), rounds },
        }
    }

    fn terms(&self, stages: &[StageOutcome]) -> Terms {
        let room = |stage: &StageOutcome| {
            ((1.0 - self.settings.reserve) * stage.memory_bytes - stage.bytes())
                / (1.0 + stage.slack)
        };
        Terms {
            rounds: self.candidate.micro_batches as f64,
            overlap: self.settings.overlap,
            budget: self.budget(),
            room: stages.iter().map(room).collect(),
        }
    }

    /// Bytes of memory of every device of a stage.
    fn memory_bytes(&self, rank: usize) -> f64 {
        self.spread.map_or(self.costs.device.memory_bytes, |spread| spread.memory_bytes(rank))
    }

    /// Schedules that are solved together, because the same strategies are best for them.
    fn families(&self) -> Vec<Vec<Schedule>> {
        let mut turns = vec![Schedule::OneForwardOneBackward];
        let Candidate { stages, micro_batches, .. } = *self.candidate;
        if stages == 1 {
            return vec![turns];
        }
        if let Some(schedule) = self.settings.schedule {
            return vec![vec![schedule]];
        }
        let blocks = self.chain.blocks();
        let chunks = [2, 4]
            .into_iter()
            .filter(|chunks| micro_batches.is_multiple_of(stages) && blocks >= chunks * stages);
        turns.extend(chunks.map(|chunks| Schedule::Interleaved { chunks }));
        vec![turns, vec![Schedule::ZeroBubble]]
    }

    fn stage(
        &self,
        choice: &Choice,
        blocks: &[Cost],
        range: &Range<usize>,
        schedule: Schedule,
        rank: usize,
    ) -> StageOutcome {
        let Candidate { stages, micro_batches, ref mesh, .. } = *self.candidate;
        let message = |end: usize, rank: usize| match self.chain.exit(choice, end - 1) {
            Some((shape, sides)) if rank + 1 < stages => {
                let hop = Group::next_stage(self.costs.cluster, mesh.iter().product(), rank);
                self.costs.message(shape, sides, &hop)
            }
            _ => Message::default(),
        };
        let sent = message(range.end, rank);
        let received_s = if rank > 0 { message(range.start, rank - 1).handling_s } else { 0.0 };
        StageOutcome {
            blocks: range.clone(),
            memory_bytes: self.memory_bytes(rank),
            cost: blocks[range.clone()].iter().copied().sum(),
            fixed_bytes: self.costs.device.fixed_bytes,
            slack: self.costs.device.slack,
            in_flight: schedule.in_flight(rank, stages, micro_batches),
            block_kept_bytes: 0.0,
            message_s: sent.seconds,
            message_bytes: sent.bytes,
            handling_s: sent.handling_s + received_s,
        }
    }
}

/// The fastest of the plans at several prices of losses, with the best of their bounds; where the
/// last price had no plan that is fast enough, that is what there is to say.
fn best_bounded(verdicts: Vec<Verdict>, last: Option<Verdict>) -> Verdict {
    let bound = |verdict: &Verdict| match verdict {
        Verdict::Found(outcome) => outcome.bound_s,
        _ => 0.0,
    };
    let bounds = verdicts.iter().map(bound).fold(0.0, f64::max);
    match verdicts.into_iter().chain(last).fold(Verdict::Impossible, better) {
        Verdict::Found(outcome) => {
            Verdict::Found(Box::new(Outcome { bound_s: bounds.max(outcome.bound_s), ..*outcome }))
        }
        other => other,
    }
}
