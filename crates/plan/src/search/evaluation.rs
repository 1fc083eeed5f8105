//! The best plan of one candidate: strategies within memory and the error budget, then stages, then
//! what is encoded, then the schedule.

use std::ops::Range;

use super::candidate::Candidate;
use super::carry::{Terms, carry};
use super::chain::{Chain, Choice};
use super::evaluate::{Verdict, better};
use super::outcome::{Outcome, StageOutcome, estimate_s};
use super::settings::Settings;
use super::spread::{Assigned, Spread};
use crate::cluster::Device;
use crate::cost::{Cost, Costs, Group, message_s};
use crate::pipeline::{Schedule, cut};
use crate::stage::{Lack, Price, Rates, Weights, Within, within};

/// How often the price of losses is changed at most.
const ROUNDS: usize = 4;
/// The first price: what all losses of the choice without a budget cost together, in steps.
const FIRST: f64 = 0.1;
/// The last price, at which next to nothing is encoded.
const DEAR: f64 = 1e3;

/// A candidate under evaluation, with forward computed once or twice.
pub(super) struct Evaluation<'a> {
    pub candidate: &'a Candidate,
    pub settings: &'a Settings,
    pub costs: &'a Costs<'a>,
    pub chain: &'a Chain<'a>,
    pub spread: Option<&'a Spread<'a>>,
    pub recompute: bool,
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
        let weights = Weights { loss: seconds_per_loss, ..self.weights(family, exposed) };
        let worth_s = seconds_per_loss * self.budget();
        let Device { memory_bytes, fixed_bytes, .. } = self.costs.device;
        let fixed = fixed_bytes;
        let whole = memory_bytes * (1.0 - self.settings.reserve) - fixed;
        let mut limit = whole;
        let mut verdict = Verdict::Impossible;
        // What stages need beyond equal shares is taken off the limit, twice at most.
        for _ in 0..3 {
            let solve = |rate| {
                let (price, choice) = self.chain.solve(&weights, rate);
                (Price { seconds: price.seconds - worth_s, ..price }, choice)
            };
            let found = match within(limit, (self.enough_s)(), solve) {
                Ok(found) => found,
                Err(Lack::Bytes(bytes)) => {
                    return better(verdict, Verdict::TooLarge(bytes + whole - limit + fixed));
                }
                Err(Lack::Seconds(seconds)) if limit == whole => return Verdict::TooSlow(seconds),
                Err(Lack::Seconds(_)) => return verdict,
            };
            let outcome = self.outcome(family, &found);
            let Some(outcome) = outcome else { return verdict };
            let over = outcome.over(self.settings.reserve);
            if over <= 0.0 {
                return Verdict::Found(Box::new(outcome));
            }
            verdict = better(verdict, Verdict::TooLarge(whole + fixed + over));
            limit -= over;
        }
        verdict
    }

    /// A step's seconds and a device's bytes where all stages get equal shares: no cut and no
    /// schedule of the family takes less.
    fn weights(&self, family: &[Schedule], exposed: f64) -> Weights {
        let (p, m) = (self.candidate.stages as f64, self.candidate.micro_batches as f64);
        let chunks = family.iter().map(|schedule| schedule.chunks()).max().unwrap_or(1) as f64;
        let apart = family.contains(&Schedule::ZeroBubble);
        let rounds = (m + (p - 1.0) / chunks) / p;
        let in_flight = m.min(p) / p;
        let blocks = self.chain.blocks() as f64;
        let forwards = self.forwards();
        Weights {
            forward: rounds * forwards,
            backward: if apart { m / p } else { rounds } - exposed * self.settings.overlap.sync / p,
            backward_wire: rounds,
            step: 1.0 / p,
            sync: exposed / p,
            handling: (1.0 - exposed) / p,
            state: 1.0 / p,
            kept: if self.recompute { 1.0 / blocks } else { in_flight },
            entry: if self.recompute { in_flight } else { 0.0 },
            loss: 0.0,
        }
    }

    fn outcome(&self, family: &[Schedule], found: &Within<Choice>) -> Option<Outcome> {
        let forwards = self.forwards();
        let cuts = match self.spread {
            Some(spread) => spread.cut(&found.choice, forwards)?,
            None => {
                let blocks = self.chain.costs(&found.choice);
                let micro: Vec<f64> = blocks.iter().map(|cost| cost.micro_s(forwards)).collect();
                cut(&micro, self.candidate.stages)?
            }
        };
        let best = self.staged(&found.choice, &cuts, family)?;
        let Within { bound_s, seconds_per_byte, .. } = *found;
        Some(Outcome { bound_s, seconds_per_byte, ..best })
    }

    /// The best schedule for strategies in given stages, with what is best encoded.
    pub fn staged(
        &self,
        choice: &Choice,
        cuts: &[Range<usize>],
        family: &[Schedule],
    ) -> Option<Outcome> {
        let reserve = self.settings.reserve;
        let mut best: Option<Outcome> = None;
        for schedule in family.iter().copied() {
            let Assigned { mut blocks, shares, rounds } = self.assign(choice, cuts, schedule);
            let all = |blocks: &[Cost]| -> Vec<StageOutcome> {
                let stage = |(rank, range)| self.stage(choice, blocks, range, schedule, rank);
                cuts.iter().enumerate().map(stage).collect()
            };
            let raw = all(&blocks);
            let room = raw
                .iter()
                .map(|stage| (1.0 - reserve) * stage.memory_bytes - stage.bytes(self.recompute))
                .collect();
            let coded = carry(self.chain, choice, cuts, &self.terms(room), &mut blocks);
            let stages = if coded.is_empty() { raw } else { all(&blocks) };
            let overlap = self.settings.overlap;
            let outcome = Outcome {
                candidate: self.candidate.clone(),
                schedule,
                recompute: self.recompute,
                choice: choice.clone(),
                coded,
                shares,
                rounds,
                seconds: estimate_s(&stages, schedule, rounds, self.forwards(), overlap),
                stages,
                bound_s: 0.0,
                seconds_per_byte: 0.0,
            };
            let better =
                |best: &Outcome| outcome.seconds < best.seconds && outcome.over(reserve) <= 0.0;
            if best.as_ref().is_none_or(better) {
                best = Some(outcome);
            }
        }
        best
    }

    /// What blocks cost where it takes longest, and who does how many micro-batches.
    fn assign(&self, choice: &Choice, cuts: &[Range<usize>], schedule: Schedule) -> Assigned {
        let rounds = self.candidate.micro_batches;
        match self.spread {
            Some(spread) => spread.assign(choice, cuts, schedule, (rounds, self.forwards())),
            None => Assigned { blocks: self.chain.costs(choice), shares: Vec::new(), rounds },
        }
    }

    /// How often forward is computed.
    fn forwards(&self) -> f64 {
        if self.recompute { 2.0 } else { 1.0 }
    }

    fn terms(&self, room: Vec<f64>) -> Terms<'_> {
        Terms {
            candidate: self.candidate,
            forwards: self.forwards(),
            overlap: self.settings.overlap,
            budget: self.budget(),
            room,
        }
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
                let bytes = self.costs.bytes(shape, &sides.value);
                let hop = Group::next_stage(self.costs.cluster, mesh.iter().product(), rank);
                (bytes, message_s(&hop, bytes), self.costs.message_handling_s(bytes))
            }
            _ => (0.0, 0.0, 0.0),
        };
        let (message_bytes, message_seconds, sent_s) = message(range.end, rank);
        let received_s = if rank > 0 { message(range.start, rank - 1).2 } else { 0.0 };
        let kept = blocks[range.clone()].iter().map(|cost| cost.kept_bytes);
        StageOutcome {
            blocks: range.clone(),
            memory_bytes: match self.spread {
                Some(spread) => spread.memory_bytes(rank),
                None => self.costs.device.memory_bytes,
            },
            cost: blocks[range.clone()].iter().copied().sum(),
            fixed_bytes: self.costs.device.fixed_bytes,
            in_flight: schedule.in_flight(rank, stages, micro_batches),
            block_kept_bytes: kept.fold(0.0, f64::max),
            message_s: message_seconds,
            message_bytes,
            handling_s: sent_s + received_s,
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
