//! What a plan takes: its time and its memory, stage by stage.

use std::ops::Range;

use super::candidate::Candidate;
use super::chain::Choice;
use super::thrift::{Spared, Treated};
use crate::cost::Cost;
use crate::pipeline::{self, Schedule, Timeline, simulate};

/// A candidate with everything chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was fixed before.
    pub candidate: Candidate,
    /// The order of passes.
    pub schedule: Schedule,
    /// The strategies.
    pub choice: Choice,
    /// Blocks that compute forward again, and parameters that are divided or whose gradients travel
    /// otherwise than usual.
    pub spared: Spared,
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
    pub left_s: f64,
    /// What one more byte of memory would save, in seconds.
    pub seconds_per_byte: f64,
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
    pub block_kept_bytes: f64,
    /// Seconds of a message to the next stage.
    pub message_s: f64,
    /// Bytes of it.
    pub message_bytes: f64,
    /// Seconds of a device's own time that messages take of every pass.
    pub handling_s: f64,
}

/// What may happen at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// The part of the last backward in which gradients may travel.
    pub sync: f64,
    /// Whether stages compute while their messages travel.
    pub messages: bool,
    /// Whether exchanges of gradients are under way side by side, so that their latencies do not add
    /// up.
    pub exchanges: bool,
}

impl StageOutcome {
    /// Bytes of a device's memory.
    pub fn bytes(&self) -> f64 {
        let waiting = self.in_flight * self.cost.kept_bytes + self.block_kept_bytes;
        self.fixed_bytes + (1.0 + self.slack) * (self.cost.state_bytes + waiting)
    }

    /// Seconds that bringing gradients together takes beyond backward, which hides what does not
    /// take the device's own time.
    pub fn exposed_s(&self, overlap: Overlap) -> f64 {
        (self.cost.sync_s - overlap.sync * self.cost.backward_s).max(self.cost.handling_s)
    }

    /// Whether backward hides all that it can.
    pub fn is_hidden(&self, overlap: Overlap) -> bool {
        self.exposed_s(overlap) <= self.cost.handling_s
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

    /// What encoding gradients loses, in elements of parameters.
    pub fn loss(&self) -> f64 {
        self.stages.iter().map(|stage| stage.cost.loss).sum()
    }

    /// Whether memory has cost time.
    pub fn binds(&self) -> bool {
        let raw = |one: &Treated| one.carriage.coding.is_none();
        let divided = self.spared.treated.iter().any(raw);
        self.seconds_per_byte > 0.0 || self.recomputed() > 0 || divided
    }

    /// Whether messages set the pace, and not stages.
    pub fn waits(&self) -> bool {
        let chunks = self.schedule.chunks();
        let slowest = self.stages.iter().map(|stage| stage.micro_s(chunks)).fold(0.0, f64::max);
        self.stages.iter().any(|stage| chunks as f64 * stage.message_s > slowest)
    }

    /// How many blocks compute forward again in backward.
    pub fn recomputed(&self) -> usize {
        self.spared.again.iter().filter(|again| **again).count()
    }
}

/// What happens once a step, after the last micro-batch.
pub fn tail_s(stages: &[StageOutcome], overlap: Overlap) -> f64 {
    let tail = |stage: &StageOutcome| stage.exposed_s(overlap) + stage.cost.optimizer_s;
    stages.iter().map(tail).fold(0.0, f64::max)
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
    let micro = |stage: &StageOutcome| stage.micro_s(chunks) + waits * stage.message_s;
    let slowest = stages.iter().map(micro).fold(0.0, f64::max);
    let once: f64 = stages.iter().map(micro).sum();
    let part = match schedule {
        Schedule::Gpipe | Schedule::OneForwardOneBackward => 1.0,
        Schedule::Interleaved { chunks } => 1.0 / chunks as f64,
        Schedule::ZeroBubble => {
            let weights: f64 = stages.iter().map(|stage| 0.5 * stage.cost.backward_s).sum();
            1.0 - 2.0 * weights / once
        }
    };
    let messages: f64 = stages.iter().map(|stage| stage.message_s).sum();
    let fill = (once - slowest).max(0.0) * part + (2.0 - waits) * messages;
    let round_s = if overlap.messages { round_s(stages, schedule, &micro) } else { 0.0 };
    slowest + (micro_batches as f64 - 1.0) * slowest.max(round_s) + fill + tail_s(stages, overlap)
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
        Schedule::ZeroBubble => 0.5,
    };
    let (mut back, mut ahead, mut most) = (0.0, 0.0, link);
    for stage in stages.iter().rev() {
        back += micro(stage) - apart * stage.cost.backward_s + 2.0 * stage.message_s;
        ahead += 1.0;
        most = most.max(back / ahead);
    }
    most
}

/// Seconds of a step, played through.
pub fn simulated_s(outcome: &Outcome, overlap: Overlap) -> Option<f64> {
    Some(timeline(outcome, overlap)?.seconds + tail_s(&outcome.stages, overlap))
}

/// What every stage does when, until the last micro-batch is done.
pub fn timeline(outcome: &Outcome, overlap: Overlap) -> Option<Timeline> {
    let ranks = outcome.stages.len();
    let chunks = outcome.schedule.chunks() as f64;
    let stage = |stage: &StageOutcome| {
        let Cost { backward_s, backward_wire_s, again_s, .. } = stage.cost;
        let waits = if overlap.messages { stage.handling_s } else { stage.message_s };
        let weight_s = match outcome.schedule {
            Schedule::ZeroBubble => 0.5 * backward_s,
            _ => 0.0,
        };
        pipeline::Stage {
            forward_s: stage.cost.ahead_s() / chunks + waits,
            backward_s: (again_s + backward_s + backward_wire_s - weight_s) / chunks + waits,
            weight_s: weight_s / chunks,
            message_s: if overlap.messages { stage.message_s } else { 0.0 },
        }
    };
    let once: Vec<pipeline::Stage> = outcome.stages.iter().map(stage).collect();
    let stages = once.repeat(outcome.schedule.chunks());
    let orders = outcome.schedule.orders(ranks, outcome.rounds)?;
    simulate(&orders, &stages)
}
