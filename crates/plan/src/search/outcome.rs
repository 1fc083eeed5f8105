//! What a plan takes: its time and its memory, stage by stage.

use std::ops::Range;

use super::candidate::Candidate;
use super::chain::Choice;
use super::overlap::{Exposed, Overlap, WEIGHTS};
use super::savings::{ParameterOverride, Savings};
use crate::cost::Cost;
use crate::pipeline::{self, Schedule, Timeline, simulate};

/// A candidate with everything chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was fixed before.
    pub candidate: Candidate,
    /// The order of passes.
    pub schedule: Schedule,
    /// The same candidate in other orders of passes, which take no less in closed form.
    pub other_schedules: Vec<Outcome>,
    /// The strategies.
    pub choice: Choice,
    /// Blocks that compute forward again, and parameters that are divided or whose gradients travel
    /// otherwise than usual.
    pub savings: Savings,
    /// Micro-batches of every part of the first dimension of the mesh, on devices that differ; empty
    /// if all have as many.
    pub shares: Vec<usize>,
    /// Micro-batches of the part that is last.
    pub rounds: usize,
    /// The stages, as that part has them.
    pub stages: Vec<StageOutcome>,
    /// Seconds of a step.
    pub seconds: f64,
    /// No strategies of this candidate take less.
    pub bound_s: f64,
    /// What was given up of this candidate, because it was not fast enough, takes no less.
    pub pruned_bound_s: f64,
    /// Plans of this candidate of which none was found to fit take no less.
    pub infeasible_bound_s: f64,
    /// What one more byte of memory would save, in seconds.
    pub seconds_per_byte: f64,
    /// What one encoding of an activation was allowed to lose; the setting allows as much or more.
    pub activation_budget: f64,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StageOutcome {
    /// Its blocks.
    pub blocks: Range<usize>,
    /// What all of them cost together.
    pub cost: Cost,
    /// Bytes of memory that its devices have.
    pub memory_bytes: f64,
    /// Bytes of it that a training takes whatever its size.
    pub fixed_bytes: f64,
    /// Bytes that are taken beyond every byte that is counted here.
    pub slack: f64,
    /// Micro-batches that wait for backward at most.
    pub in_flight: f64,
    /// What one block keeps at most of those that compute forward again.
    pub block_activation_bytes: f64,
    /// Seconds of a message to the next stage.
    pub message_s: f64,
    /// Bytes of it.
    pub message_bytes: f64,
    /// Seconds of a device's own time that messages take of every pass.
    pub handling_s: f64,
    /// Seconds once a step in which sums of what this stage updates come from other stages, and new
    /// values go there, beyond what is computed between them.
    pub shared_parameter_s: f64,
    /// Seconds of that, where anything goes beyond it.
    pub shared_parameter_overlap_s: f64,
}

impl StageOutcome {
    /// Bytes of a device's memory.
    pub fn bytes(&self) -> f64 {
        let waiting = self.in_flight * self.cost.activation_bytes + self.block_activation_bytes;
        self.fixed_bytes + (1.0 + self.slack) * (self.cost.state_bytes + waiting)
    }

    /// The same as if links took no time, without what hides them.
    fn alone(&self) -> StageOutcome {
        let Cost { forward_s, forward_wire_s, recompute_s, .. } = self.cost;
        let computed = forward_s / (forward_s + forward_wire_s).max(f64::MIN_POSITIVE);
        let (forward_wire_s, backward_wire_s, gather_s) = (0.0, 0.0, 0.0);
        let (sync_s, all_gather_s, recompute_s) = (0.0, 0.0, recompute_s * computed);
        let cost = Cost { forward_wire_s, backward_wire_s, gather_s, recompute_s, ..self.cost };
        let backward_s = self.cost.backward_s - self.cost.overlapped_s;
        let cost = Cost { sync_s, all_gather_s, backward_s, overlapped_s: 0.0, ..cost };
        StageOutcome { cost, message_s: 0.0, shared_parameter_s: 0.0, ..self.clone() }
    }

    /// Seconds after its last micro-batch, once a step.
    fn after_s(&self, overlap: Overlap) -> f64 {
        overlap.tail_s(&self.cost) + self.shared_parameter_s
    }

    /// Seconds of one micro-batch's passes.
    fn micro_s(&self, chunks: usize) -> f64 {
        self.cost.micro_s() + 2.0 * chunks as f64 * self.handling_s
    }
}

impl Outcome {
    /// Bytes of the fullest device.
    pub fn bytes(&self) -> f64 {
        self.stages.iter().map(|stage| stage.bytes()).fold(0.0, f64::max)
    }

    /// By how many bytes the fullest device is too full, where a part of memory stays free; below 0
    /// if all have room.
    pub fn over(&self, reserve: f64) -> f64 {
        let over = |stage: &StageOutcome| stage.bytes() - (1.0 - reserve) * stage.memory_bytes;
        self.stages.iter().map(over).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Remembers a plan that is no faster, and what it remembers: of every other order of passes the
    /// fastest, since playing them through may turn the order.
    pub(super) fn beside(mut self, mut other: Outcome) -> Outcome {
        let other_schedules = std::mem::take(&mut other.other_schedules);
        for other in std::iter::once(other).chain(other_schedules) {
            let same = |one: &&mut Outcome| one.schedule == other.schedule;
            match self.other_schedules.iter_mut().find(same) {
                Some(known) if other.seconds < known.seconds => *known = other,
                None if other.schedule != self.schedule => self.other_schedules.push(other),
                _ => {}
            }
        }
        self
    }

    /// The same where no strategies of the candidate take less than so many seconds, under any of its
    /// orders of passes.
    pub(super) fn bounded(mut self, bound_s: f64) -> Outcome {
        self.other_schedules.iter_mut().for_each(|other| other.bound_s = bound_s);
        let pruned_bound_s = self.pruned_bound_s.max(bound_s);
        Outcome { bound_s, pruned_bound_s, ..self }
    }

    /// What none of its orders of passes goes below, nor what was not found to fit.
    pub(super) fn least_s(&self) -> f64 {
        let all = self.other_schedules.iter().chain([self]);
        all.map(|one| one.bound_s.min(one.seconds)).fold(self.infeasible_bound_s, f64::min)
    }

    /// What goes beyond what hides it, on any stage.
    pub fn exposed(&self, overlap: Overlap) -> Exposed {
        let overlap = overlap.under(self.schedule);
        self.stages
            .iter()
            .map(|stage| overlap.exposed(&stage.cost))
            .fold(Exposed::NOTHING, Exposed::or)
    }

    /// What encoding gradients loses, in elements of parameters.
    pub fn codec_error(&self) -> f64 {
        self.stages.iter().map(|stage| stage.cost.codec_error).sum()
    }

    /// Whether memory has cost time.
    pub fn binds(&self) -> bool {
        let raw = |one: &ParameterOverride| one.transport.coding.is_none();
        let divided = self.savings.overrides.iter().any(raw);
        self.seconds_per_byte > 0.0 || self.recomputed() > 0 || divided
    }

    /// Seconds of a step, in closed form, in which nothing travels: what faster links leave of it.
    pub fn computed_s(&self, overlap: Overlap) -> f64 {
        let alone: Vec<StageOutcome> = self.stages.iter().map(StageOutcome::alone).collect();
        let here = overlap.under(self.schedule);
        let hides = |StageOutcome { cost, shared_parameter_overlap_s, .. }: &StageOutcome| {
            let Exposed { sync, all_gather } = here.exposed(cost);
            let backward_s = if sync { cost.backward_s - cost.overlapped_s } else { 0.0 };
            let forward_s = if all_gather { cost.forward_s } else { 0.0 };
            here.sync * backward_s + here.all_gather * forward_s + shared_parameter_overlap_s
        };
        let hides_s = self.stages.iter().map(hides).fold(0.0, f64::max);
        (estimate_s(&alone, self.schedule, self.rounds, overlap) - hides_s).max(0.0)
    }

    /// What happens once a step, after the last micro-batch.
    pub fn tail_s(&self, overlap: Overlap) -> f64 {
        let here = overlap.under(self.schedule);
        self.stages.iter().map(|stage| stage.after_s(here)).fold(0.0, f64::max)
    }

    /// Whether messages set the pace, and not stages.
    pub fn waits(&self) -> bool {
        let chunks = self.schedule.chunks();
        let slowest = self.stages.iter().map(|stage| stage.micro_s(chunks)).fold(0.0, f64::max);
        self.stages.iter().any(|stage| chunks as f64 * stage.message_s > slowest)
    }

    /// How many blocks compute forward again in backward.
    pub fn recomputed(&self) -> usize {
        self.savings.recomputed.iter().filter(|again| **again).count()
    }
}

/// What happens once a step, after the last micro-batch, and what the first one then waits for.
fn once_s(stages: &[StageOutcome], overlap: Overlap) -> f64 {
    let once =
        |stage: &StageOutcome| stage.after_s(overlap) + overlap.exposed_all_gather_s(&stage.cost);
    stages.iter().map(once).fold(0.0, f64::max)
}

/// Seconds of a step in closed form.
pub fn estimate_s(
    stages: &[StageOutcome],
    schedule: Schedule,
    micro_batches: usize,
    overlap: Overlap,
) -> f64 {
    let waits = if overlap.messages { 0.0 } else { 2.0 };
    let chunks = schedule.chunks();
    let apart = if schedule == Schedule::ZeroBubble { 1.0 } else { 0.0 };
    let micro = |stage: &StageOutcome| {
        stage.micro_s(chunks) + apart * stage.cost.overlapped_s + waits * stage.message_s
    };
    let slowest = stages.iter().map(micro).fold(0.0, f64::max);
    let once: f64 = stages.iter().map(micro).sum();
    let part = match schedule {
        Schedule::Gpipe | Schedule::OneForwardOneBackward => 1.0,
        Schedule::Interleaved { chunks } => 1.0 / chunks as f64,
        Schedule::ZeroBubble => {
            let weights: f64 = stages.iter().map(|stage| WEIGHTS * stage.cost.backward_s).sum();
            1.0 - 2.0 * weights / once
        }
    };
    let messages: f64 = stages.iter().map(|stage| stage.message_s).sum();
    let fill = (once - slowest).max(0.0) * part + (2.0 - waits) * messages;
    let round_s = if overlap.messages { round_s(stages, schedule, &micro) } else { 0.0 };
    slowest
        + (micro_batches as f64 - 1.0) * slowest.max(round_s)
        + fill
        + once_s(stages, overlap.under(schedule))
}

/// Seconds that messages leave between two micro-batches at least. Each link carries them one after
/// the other. And where a stage lets few micro-batches in before one comes back, those must last
/// for the way to the end and back.
fn round_s(
    stages: &[StageOutcome],
    schedule: Schedule,
    micro: &dyn Fn(&StageOutcome) -> f64,
) -> f64 {
    let link = stages.iter().map(|stage| stage.message_s).fold(0.0, f64::max);
    let apart = match schedule {
        Schedule::Gpipe | Schedule::Interleaved { .. } => {
            return schedule.chunks() as f64 * link;
        }
        Schedule::OneForwardOneBackward => 0.0,
        Schedule::ZeroBubble => WEIGHTS,
    };
    let (mut back, mut ahead, mut most) = (0.0, 0.0, link);
    for stage in stages.iter().rev() {
        back += micro(stage) - apart * stage.cost.backward_s + 2.0 * stage.message_s;
        ahead += 1.0;
        most = most.max(back / ahead);
    }
    most
}

/// Pipelines of more passes forward are left to the closed form.
const PASSES_MAX: f64 = (1_u64 << 20) as f64;

/// Seconds of a step, played through.
pub fn simulated_s(outcome: &Outcome, overlap: Overlap) -> Option<f64> {
    let timeline = timeline(outcome, overlap)?;
    Some(done_s(outcome, overlap, &timeline).into_iter().fold(0.0, f64::max))
}

/// When every stage of a plan that was played through is done with its gradients and the optimiser. A
/// stage behind others brings gradients together when its last message is on its way, while those
/// before it still work; passes of weights send none. Gradients of an interleaved stage's later chunks
/// are on their way before that, which is left out.
pub fn done_s(outcome: &Outcome, overlap: Overlap, timeline: &Timeline) -> Vec<f64> {
    let here = overlap.under(outcome.schedule);
    let done_s = |(place, stage): (usize, &StageOutcome)| {
        let end_s = timeline.ranks[place].last().map_or(0.0, |run| run.end_s);
        let hides = place == 0 || outcome.schedule == Schedule::ZeroBubble;
        end_s + stage.after_s(Overlap { sync: if hides { here.sync } else { 0.0 }, ..here })
    };
    outcome.stages.iter().enumerate().map(done_s).collect()
}

/// Seconds before which no first forward of a stage is done, because its parameters are on their way
/// home; 0 if none are.
fn parameters_ready_s(stage: &StageOutcome, overlap: Overlap) -> f64 {
    let Cost { all_gather_s, forward_s, .. } = stage.cost;
    // Collectives of forward take the same links.
    let ahead_s = stage.cost.ahead_s() - overlap.all_gather * forward_s;
    if all_gather_s > 0.0 { all_gather_s + ahead_s } else { 0.0 }
}

/// What every stage does when, until the last micro-batch is done; nothing where that are too many
/// passes to be played.
pub fn timeline(outcome: &Outcome, overlap: Overlap) -> Option<Timeline> {
    let ranks = outcome.stages.len();
    let chunks = outcome.schedule.chunks() as f64;
    if (ranks * outcome.rounds) as f64 * chunks > PASSES_MAX {
        return None;
    }
    let stage = |(place, stage): (usize, &StageOutcome)| {
        let Cost { backward_s, backward_wire_s, overlapped_s, recompute_s, .. } = stage.cost;
        let [waits, handling_s] = match overlap.messages {
            true => [0.0, stage.handling_s],
            false => [stage.message_s, 0.0],
        };
        let (weight_s, overlapped_s) = match outcome.schedule {
            Schedule::ZeroBubble => (WEIGHTS * backward_s, overlapped_s),
            _ => (0.0, 0.0),
        };
        pipeline::Stage {
            forward_s: stage.cost.ahead_s() / chunks + waits,
            backward_s: (recompute_s + backward_s + backward_wire_s + overlapped_s - weight_s)
                / chunks
                + waits,
            weight_s: weight_s / chunks,
            message_s: if overlap.messages { stage.message_s } else { 0.0 },
            handling_s,
            // Parameters come in the order in which they are used.
            home_s: parameters_ready_s(stage, overlap) * ((place / ranks + 1) as f64 / chunks),
            first_s: stage.cost.all_gather_handling_s / chunks,
        }
    };
    let all = outcome.stages.iter().cycle().take(ranks * outcome.schedule.chunks());
    let stages: Vec<pipeline::Stage> = all.enumerate().map(stage).collect();
    let orders = outcome.schedule.orders(ranks, outcome.rounds)?;
    simulate(&orders, &stages)
}
