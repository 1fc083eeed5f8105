//! Plans with their time and memory, stage by stage.

use std::ops::Range;

use super::overlap::WEIGHTS;
use super::{Candidate, Choice, Exposed, Overlap, ParameterOverride, Savings};
use crate::cost::Cost;
use crate::pipeline::{self, Schedule, Timeline, simulate};

/// A plan: a candidate for which everything is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Candidate that was evaluated.
    pub candidate: Candidate,
    /// Order of passes.
    pub schedule: Schedule,
    /// The same plan under other schedules, which are not faster according to the closed form.
    pub other_schedules: Vec<Outcome>,
    /// Strategies of all nodes.
    pub choice: Choice,
    /// Blocks that recompute the forward pass, and parameters whose sharding or gradient transport
    /// differs from the usual one.
    pub savings: Savings,
    /// Micro-batches of each part along the first mesh dimension, if devices differ; empty if all parts have
    /// the same number.
    pub shares: Vec<usize>,
    /// Micro-batches of the part that finishes last.
    pub rounds: usize,
    /// Stages, with the costs of the part that finishes last.
    pub stages: Vec<StageOutcome>,
    /// Step time in seconds.
    pub seconds: f64,
    /// Lower bound on the step time of all plans of this candidate that fit, in seconds.
    pub bound_s: f64,
    /// Lower bound on the step time of this candidate's plans that memory fitting could not make fit, in
    /// seconds.
    pub infeasible_bound_s: f64,
    /// Seconds that one more byte of memory would save.
    pub seconds_per_byte: f64,
    /// Largest relative squared error of one encoding of an activation in this plan; at most the activation
    /// budget of the settings.
    pub activation_budget: f64,
}

/// Stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StageOutcome {
    /// Blocks of the stage.
    pub blocks: Range<usize>,
    /// Sum of the costs of all blocks.
    pub cost: Cost,
    /// Memory of each device, in bytes.
    pub memory_bytes: f64,
    /// Memory that a training takes whatever its size, in bytes.
    pub fixed_bytes: f64,
    /// Extra memory per byte counted here, such as what an allocator keeps: 0.1 means 10 %.
    pub slack: f64,
    /// Largest number of micro-batches whose activations wait for the backward pass at the same time.
    pub in_flight: f64,
    /// Activations of the largest block that recomputes the forward pass, in bytes.
    pub block_activation_bytes: f64,
    /// Time of a message to the next stage, in seconds.
    pub message_s: f64,
    /// Length of a message to the next stage, in bytes.
    pub message_bytes: f64,
    /// Device time that messages take in every pass, in seconds.
    pub handling_s: f64,
    /// Exposed time once per step for shared parameters that this stage updates: summing their gradients and
    /// returning their new values, in seconds.
    pub shared_parameter_s: f64,
}

impl StageOutcome {
    /// Returns the memory of each device, in bytes.
    pub fn bytes(&self) -> f64 {
        let waiting = self.in_flight * self.cost.activation_bytes + self.block_activation_bytes;
        self.fixed_bytes + (1.0 + self.slack) * (self.cost.state_bytes + waiting)
    }

    /// Returns the seconds after the last micro-batch, once a step.
    fn after_s(&self, overlap: Overlap) -> f64 {
        overlap.tail_s(&self.cost) + self.shared_parameter_s
    }

    /// Returns the seconds of one micro-batch over all chunks.
    fn micro_s(&self, chunks: usize) -> f64 {
        self.cost.micro_s() + 2.0 * chunks as f64 * self.handling_s
    }
}

impl Outcome {
    /// Returns the memory of the fullest device, in bytes.
    pub fn bytes(&self) -> f64 {
        self.stages.iter().map(|stage| stage.bytes()).fold(0.0, f64::max)
    }

    /// Returns the bytes that the fullest device lacks, if the part `reserve` of memory must stay free;
    /// negative if all devices have enough.
    pub fn over(&self, reserve: f64) -> f64 {
        let over = |stage: &StageOutcome| stage.bytes() - (1.0 - reserve) * stage.memory_bytes;
        self.stages.iter().map(over).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Returns the plan with `other`, which is not faster, among its other schedules. The fastest plan of
    /// each schedule is kept, since simulation may change their order.
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

    /// Returns the plan with a lower bound on all strategies of its candidate, under every
    /// schedule.
    pub(super) fn bounded(mut self, bound_s: f64) -> Outcome {
        self.other_schedules.iter_mut().for_each(|other| other.bound_s = bound_s);
        Outcome { bound_s, ..self }
    }

    /// Returns a lower bound in seconds over all schedules and over infeasible plans.
    pub(super) fn least_s(&self) -> f64 {
        let all = self.other_schedules.iter().chain([self]);
        all.map(|one| one.bound_s.min(one.seconds)).fold(self.infeasible_bound_s, f64::min)
    }

    /// Returns the communication that is exposed on any stage.
    pub fn exposed(&self, overlap: Overlap) -> Exposed {
        let overlap = overlap.under(self.schedule);
        self.stages
            .iter()
            .map(|stage| overlap.exposed(&stage.cost))
            .fold(Exposed::NOTHING, Exposed::or)
    }

    /// Returns the codec error of gradients, in elements of parameters.
    pub fn codec_error(&self) -> f64 {
        self.stages.iter().map(|stage| stage.cost.codec_error).sum()
    }

    /// Returns whether more memory would save time.
    pub fn binds(&self) -> bool {
        let raw = |one: &ParameterOverride| one.transport.coding.is_none();
        let divided = self.savings.overrides.iter().any(raw);
        self.seconds_per_byte > 0.0 || self.recomputed() > 0 || divided
    }

    /// Returns the seconds that a step takes after its last micro-batch.
    pub fn tail_s(&self, overlap: Overlap) -> f64 {
        let here = overlap.under(self.schedule);
        self.stages.iter().map(|stage| stage.after_s(here)).fold(0.0, f64::max)
    }

    /// Returns the number of blocks that recompute forward.
    pub fn recomputed(&self) -> usize {
        self.savings.recomputed.iter().filter(|again| **again).count()
    }
}

/// Returns the seconds after the last micro-batch and before the first one, once per step.
fn once_s(stages: &[StageOutcome], overlap: Overlap) -> f64 {
    let once =
        |stage: &StageOutcome| stage.after_s(overlap) + overlap.exposed_all_gather_s(&stage.cost);
    stages.iter().map(once).fold(0.0, f64::max)
}

/// Returns the step time in closed form, in seconds.
pub fn estimate_s(
    stages: &[StageOutcome],
    schedule: Schedule,
    micro_batches: usize,
    overlap: Overlap,
) -> f64 {
    // Without overlap a stage waits for its messages, forth and back, with every micro-batch.
    let waits = if overlap.messages { 0.0 } else { 2.0 };
    let chunks = schedule.chunks();
    // Where gradients of weights are computed apart, they hide no communication of the rest of backward.
    let apart = if schedule == Schedule::ZeroBubble { 1.0 } else { 0.0 };
    let micro = |stage: &StageOutcome| {
        stage.micro_s(chunks) + apart * stage.cost.overlapped_s + waits * stage.message_s
    };
    let slowest = stages.iter().map(micro).fold(0.0, f64::max);
    let once: f64 = stages.iter().map(micro).sum();
    let part = match schedule {
        Schedule::Gpipe | Schedule::OneForwardOneBackward => 1.0,
        Schedule::Interleaved { chunks } => 1.0 / chunks as f64,
        // Stages that wait compute gradients of weights, which leaves forward's share of the fill (see `bound`).
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

/// Returns the least seconds between two micro-batches that messages allow. A link carries messages one after
/// the other. If a stage admits few micro-batches before one returns, these must last for the way to the last
/// stage and back.
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

/// Most forward passes of a pipeline that is simulated; for larger ones, the closed form is used.
const PASSES_MAX: f64 = (1_u64 << 20) as f64;

/// Returns the simulated step time in seconds; `None` if the pipeline is too long to simulate.
pub fn simulated_s(outcome: &Outcome, overlap: Overlap) -> Option<f64> {
    let timeline = timeline(outcome, overlap)?;
    Some(done_s(outcome, overlap, &timeline).into_iter().fold(0.0, f64::max))
}

/// Returns the time at which every stage of a simulated plan has synchronised its gradients and run
/// the optimiser.
///
/// The first stage synchronises during its last backward pass. Any other stage synchronises after it has
/// sent its last message. Its own backward pass then overlaps nothing any more, but the stages before it
/// still compute. Under zero-bubble, the last passes of every stage compute gradients of weights, which
/// need no message, and so hide synchronisation. Gradients of an interleaved stage's later chunks start
/// even earlier, which is not counted.
pub fn done_s(outcome: &Outcome, overlap: Overlap, timeline: &Timeline) -> Vec<f64> {
    let here = overlap.under(outcome.schedule);
    let done_s = |(place, stage): (usize, &StageOutcome)| {
        let end_s = timeline.ranks[place].last().map_or(0.0, |run| run.end_s);
        let hides = place == 0 || outcome.schedule == Schedule::ZeroBubble;
        end_s + stage.after_s(Overlap { sync: if hides { here.sync } else { 0.0 }, ..here })
    };
    outcome.stages.iter().enumerate().map(done_s).collect()
}

/// Returns the seconds before which the first forward of a stage cannot end, because updated
/// parameters are still being gathered; 0 if none are.
fn parameters_ready_s(stage: &StageOutcome, overlap: Overlap) -> f64 {
    let Cost { all_gather_s, forward_s, .. } = stage.cost;
    // Collectives of forward share the links with the all-gather.
    let ahead_s = stage.cost.ahead_s() - overlap.all_gather * forward_s;
    if all_gather_s > 0.0 { all_gather_s + ahead_s } else { 0.0 }
}

/// Simulates the passes of every stage until the last micro-batch is done; returns `None` if the pipeline is
/// too long.
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
            // Parameters arrive in the order of their use, chunk by chunk.
            home_s: parameters_ready_s(stage, overlap) * ((place / ranks + 1) as f64 / chunks),
            first_s: stage.cost.all_gather_handling_s / chunks,
        }
    };
    let all = outcome.stages.iter().cycle().take(ranks * outcome.schedule.chunks());
    let stages: Vec<pipeline::Stage> = all.enumerate().map(stage).collect();
    let orders = outcome.schedule.orders(ranks, outcome.rounds)?;
    simulate(&orders, &stages)
}
