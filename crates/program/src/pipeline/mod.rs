//! Pipelines: in which order stages do their passes, and how long that takes.
//!
//! An order is a value, a list of passes per stage: the executor runs it and [`simulate`] times it.
//! With several chunks per stage a micro-batch goes around the stages several times: chunk c of the
//! pipeline is on stage c modulo the stages.
//!
//! | schedule | idle, in passes forward and backward of a stage | micro-batches kept by stage i |
//! |---|---|---|
//! | GPipe | p−1 | m |
//! | 1F1B | p−1 | min(m, p−i) |
//! | interleaved, v chunks | (p−1)/v | at most p + (p−1)/v |
//! | zero-bubble | (p−1) · (f + b − w)/(f + b + w) | min(m, p) |
//!
//! with p stages, m micro-batches, and f, b and w the times of forward, the gradient of inputs and
//! the gradient of weights.

mod check;
mod deal;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod simulate;
mod zero_bubble;

pub use check::{check, defers_weights};
pub use deal::deal;
pub use simulate::{Run, Stage, Timeline, simulate};

use std::fmt;

use serde::{Deserialize, Serialize};

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From the data to the loss.
    Forward,
    /// From the loss to the gradients; with zero-bubble, the gradients of inputs alone.
    Backward,
    /// The gradients of weights, where they have a pass of their own.
    Weight,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Forward, Kind::Backward, Kind::Weight];
}

/// One micro-batch through one chunk of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pass {
    /// The direction.
    pub kind: Kind,
    /// The micro-batch.
    pub micro_batch: usize,
    /// The chunk of the pipeline.
    pub chunk: usize,
}

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All forwards, then all backwards.
    Gpipe,
    /// A backward as soon as possible, then forward and backward by turns.
    OneForwardOneBackward,
    /// 1F1B with several chunks per stage.
    Interleaved {
        /// Chunks per stage.
        chunks: usize,
    },
    /// One forward, one backward, with gradients of weights put off to where a stage would wait.
    ZeroBubble,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Gpipe => f.write_str("GPipe"),
            Schedule::OneForwardOneBackward => f.write_str("1F1B"),
            Schedule::Interleaved { chunks } => write!(f, "interleaved 1F1B of {chunks} chunks"),
            Schedule::ZeroBubble => f.write_str("zero-bubble"),
        }
    }
}

impl Schedule {
    /// Returns the passes of every stage, in order; none where the schedule cannot be: interleaving
    /// needs micro-batches in multiples of the stages.
    pub fn orders(self, stages: usize, micro_batches: usize) -> Option<Vec<Vec<Pass>>> {
        let order = |stage| match self {
            Schedule::Gpipe => Some(gpipe::order(stage, micro_batches)),
            Schedule::OneForwardOneBackward => {
                Some(one_f_one_b::order(stage, stages, micro_batches))
            }
            Schedule::Interleaved { chunks } => {
                interleaved::order(stage, stages, micro_batches, chunks)
            }
            Schedule::ZeroBubble => Some(zero_bubble::order(stage, stages, micro_batches)),
        };
        (0..stages).map(order).collect()
    }

    /// Returns the chunks per stage.
    pub fn chunks(self) -> usize {
        match self {
            Schedule::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }

    /// Returns how many micro-batches, of all of a stage's chunks together, wait for backward at
    /// most.
    pub fn in_flight(self, stage: usize, stages: usize, micro_batches: usize) -> f64 {
        let (p, m) = (stages, micro_batches);
        match self {
            Schedule::Gpipe => m as f64,
            Schedule::OneForwardOneBackward => m.min(p - stage) as f64,
            Schedule::Interleaved { chunks } => {
                let warm = 2 * (p - stage - 1) + (chunks - 1) * p + 1;
                warm.min(m * chunks) as f64 / chunks as f64
            }
            Schedule::ZeroBubble => m.min(p) as f64,
        }
    }
}

impl Pass {
    fn new(kind: Kind, micro_batch: usize, chunk: usize) -> Pass {
        Pass { kind, micro_batch, chunk }
    }
}
