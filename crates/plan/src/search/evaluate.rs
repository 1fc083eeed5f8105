//! The best plan of one candidate: strategies within memory, then stages, then the schedule.

use std::ops::Range;

use super::candidate::Candidate;
use super::chain::{Chain, Choice};
use super::outcome::{Outcome, Overlap, StageOutcome, estimate_s};
use super::prepare::Prepared;
use crate::cluster::Cluster;
use crate::cost::{Cost, Costs, Exchange, Group, Precision, message_s};
use crate::pipeline::{Schedule, cut};
use crate::stage::{Lack, Weights, Within, within};

/// What holds for all candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How numbers are kept.
    pub precision: Precision,
    /// How members of a level exchange.
    pub exchange: Exchange,
    /// What may happen at the same time.
    pub overlap: Overlap,
    /// The part of a device's memory that stays free.
    pub reserve: f64,
    /// Whether forward may be computed again in backward; or must be.
    pub recompute: Recompute,
    /// The one schedule that is allowed; any, if there is none.
    pub schedule: Option<Schedule>,
}

/// Whether forward is computed again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Never.
    Never,
    /// Where it helps.
    Free,
    /// Always.
    Always,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            precision: Precision::MIXED,
            exchange: Exchange::Direct,
            overlap: Overlap { sync: 1.0, messages: true },
            reserve: 0.1,
            recompute: Recompute::Free,
            schedule: None,
        }
    }
}

/// A candidate's mesh.
pub fn costs<'a>(cluster: &'a Cluster, candidate: &Candidate, settings: &Settings) -> Costs<'a> {
    let mut costs = Costs::new(cluster, &candidate.mesh, settings.precision);
    costs.sharding = candidate.sharding;
    costs.exchange = settings.exchange;
    costs
}

/// The least seconds that any plan of a candidate takes.
pub fn bound_s(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
) -> f64 {
    let costs = costs(cluster, candidate, settings);
    let forwards = if settings.recompute == Recompute::Always { 2.0 } else { 1.0 };
    let of_class: Vec<f64> =
        prepared.classes.iter().map(|class| costs.bound_s(&class.work, forwards)).collect();
    let once: f64 = prepared.of_block.iter().map(|class| of_class[*class]).sum();
    once * candidate.micro_batches as f64 / candidate.stages as f64
}

/// What a candidate came to.
pub enum Verdict {
    /// Its best plan.
    Found(Box<Outcome>),
    /// Nothing fits: the least bytes found of a device's memory.
    TooLarge(f64),
    /// None of its plans takes less than these seconds, which was not enough.
    TooSlow(f64),
    /// The candidate contradicts itself.
    Impossible,
}

/// The best plan of a candidate, if it takes less than `enough_s()` seconds.
pub fn evaluate(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Verdict {
    let costs = costs(cluster, candidate, settings);
    match Chain::new(prepared, &costs, candidate.rule) {
        Ok(chain) => best_of(&chain, &costs, candidate, settings, enough_s),
        Err(_) => Verdict::Impossible,
    }
}

/// The best plan of a candidate on a chain that is worked out, if it takes less than `enough_s()`
/// seconds.
pub fn best_of(
    chain: &Chain<'_>,
    costs: &Costs<'_>,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Verdict {
    let options: &[bool] = match settings.recompute {
        Recompute::Never => &[false],
        Recompute::Free => &[false, true],
        Recompute::Always => &[true],
    };
    let mut best = Verdict::Impossible;
    for recompute in options {
        let recompute = *recompute;
        let one = Evaluation { candidate, settings, costs, chain, recompute, enough_s };
        best = better(best, one.run());
    }
    best
}

fn better(one: Verdict, other: Verdict) -> Verdict {
    use Verdict::{Found, Impossible, TooLarge, TooSlow};
    match (one, other) {
        (Found(a), Found(b)) => Found(if a.seconds <= b.seconds { a } else { b }),
        (Found(a), _) | (_, Found(a)) => Found(a),
        (TooSlow(a), TooSlow(b)) => TooSlow(a.min(b)),
        (TooSlow(a), _) | (_, TooSlow(a)) => TooSlow(a),
        (TooLarge(a), TooLarge(b)) => TooLarge(a.min(b)),
        (TooLarge(a), Impossible) | (Impossible, TooLarge(a)) => TooLarge(a),
        (Impossible, Impossible) => Impossible,
    }
}

struct Evaluation<'a> {
    candidate: &'a Candidate,
    settings: &'a Settings,
    costs: &'a Costs<'a>,
    chain: &'a Chain<'a>,
    recompute: bool,
    enough_s: &'a dyn Fn() -> f64,
}

impl Evaluation<'_> {
    /// Gradients travel beyond what backward hides, or they do not: either is a problem whose
    /// solution bounds the other's, so the second is solved only where the first says nothing.
    fn run(&self) -> Verdict {
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
                overlap.sync > 0.0
                    && outcome.stages.iter().all(|stage| stage.exposed_s(overlap) == 0.0)
            }
            _ => false,
        };
        if hidden { better(exposed, self.solve(family, 0.0)) } else { exposed }
    }

    fn solve(&self, family: &[Schedule], exposed: f64) -> Verdict {
        let weights = self.weights(family, exposed);
        let whole = self.costs.device.memory_bytes * (1.0 - self.settings.reserve);
        let mut limit = whole;
        let mut verdict = Verdict::Impossible;
        // What stages need beyond equal shares is taken off the limit, twice at most.
        for _ in 0..3 {
            let solve = |rate| self.chain.solve(&weights, rate);
            let found = match within(limit, (self.enough_s)(), solve) {
                Ok(found) => found,
                Err(Lack::Bytes(bytes)) => {
                    return better(verdict, Verdict::TooLarge(bytes + whole - limit));
                }
                Err(Lack::Seconds(seconds)) if limit == whole => return Verdict::TooSlow(seconds),
                Err(Lack::Seconds(_)) => return verdict,
            };
            let outcome = self.outcome(family, &found);
            let Some(outcome) = outcome else { return verdict };
            let bytes = outcome.bytes();
            if bytes <= whole {
                return Verdict::Found(Box::new(outcome));
            }
            verdict = better(verdict, Verdict::TooLarge(bytes));
            limit -= bytes - whole;
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
        let forwards = if self.recompute { 2.0 } else { 1.0 };
        Weights {
            forward: rounds * forwards,
            backward: if apart { m / p } else { rounds } - exposed * self.settings.overlap.sync / p,
            backward_wire: rounds,
            step: 1.0 / p,
            sync: exposed / p,
            state: 1.0 / p,
            kept: if self.recompute { 1.0 / blocks } else { in_flight },
            entry: if self.recompute { in_flight } else { 0.0 },
        }
    }

    fn outcome(&self, family: &[Schedule], found: &Within<Choice>) -> Option<Outcome> {
        let choice = &found.choice;
        let forwards = if self.recompute { 2.0 } else { 1.0 };
        let blocks = self.chain.costs(choice);
        let micro: Vec<f64> = blocks.iter().map(|cost| cost.micro_s(forwards)).collect();
        let cuts = cut(&micro, self.candidate.stages)?;
        let mut best: Option<Outcome> = None;
        for schedule in family.iter().copied() {
            let stages: Vec<StageOutcome> = cuts
                .iter()
                .enumerate()
                .map(|(rank, range)| self.stage(choice, &blocks, range, schedule, rank))
                .collect();
            let (m, overlap) = (self.candidate.micro_batches, self.settings.overlap);
            let seconds = estimate_s(&stages, schedule, m, forwards, overlap);
            if best.as_ref().is_none_or(|best| seconds < best.seconds) {
                let outcome = Outcome {
                    candidate: self.candidate.clone(),
                    schedule,
                    recompute: self.recompute,
                    choice: choice.clone(),
                    stages,
                    seconds,
                    bound_s: found.bound_s,
                    seconds_per_byte: found.seconds_per_byte,
                };
                let limit = self.costs.device.memory_bytes * (1.0 - self.settings.reserve);
                if best.is_none() || outcome.bytes() <= limit {
                    best = Some(outcome);
                }
            }
        }
        best
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
        let (message_bytes, message_seconds) = match self.chain.exit(choice, range.end - 1) {
            Some((shape, sides)) if rank + 1 < stages => {
                let bytes = self.costs.bytes(shape, &sides.value);
                let hop = Group::neighbour(self.costs.cluster, mesh.iter().product());
                (bytes, message_s(&hop, bytes))
            }
            _ => (0.0, 0.0),
        };
        let kept = blocks[range.clone()].iter().map(|cost| cost.kept_bytes);
        StageOutcome {
            blocks: range.clone(),
            cost: blocks[range.clone()].iter().copied().sum(),
            in_flight: schedule.in_flight(rank, stages, micro_batches),
            block_kept_bytes: kept.fold(0.0, f64::max),
            message_s: message_seconds,
            message_bytes,
        }
    }
}
