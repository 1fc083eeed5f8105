//! Pipelines: in which order stages do their passes, and how long that takes.
//!
//! An order is a value, a list of passes per rank: what the executor runs and what [`simulate`]
//! times. With several chunks per rank a micro-batch goes around the ranks several times: chunk c
//! of rank r is stage `c · ranks + r`.
//!
//! | schedule | idle, in passes forward and backward of a rank | micro-batches kept by rank i |
//! |---|---|---|
//! | GPipe | p−1 | m |
//! | 1F1B | p−1 | min(m, p−i) |
//! | interleaved, v chunks | (p−1)/v | at most p + (p−1)/v |
//! | zero-bubble | (p−1) · (f + b − w)/(f + b + w) | min(m, p) |
//!
//! with p ranks, m micro-batches, and f, b and w the times of forward, the gradient of inputs and
//! the gradient of weights.

mod cut;
mod deal;
mod gpipe;
mod interleaved;
mod one_forward;
mod simulate;
mod zero_bubble;

pub use cut::{cut, cut_by};
pub use deal::deal;
pub use simulate::{Run, Stage, Timeline, simulate};

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a rank does with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Forward.
    Forward,
    /// Backward; with zero-bubble, the gradient of inputs alone.
    Backward,
    /// The gradient of weights, where it is apart.
    Weight,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Forward, Kind::Backward, Kind::Weight];
}

/// One entry of a rank's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pass {
    /// What is done.
    pub kind: Kind,
    /// With which micro-batch.
    pub micro_batch: usize,
    /// In which of the rank's chunks.
    pub chunk: usize,
}

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All forwards, then all backwards.
    Gpipe,
    /// A backward as soon as possible, then forward and backward in turns.
    OneForwardOneBackward,
    /// The same with several chunks per rank.
    Interleaved {
        /// Chunks per rank.
        chunks: usize,
    },
    /// One forward, one backward, with gradients of weights put off to where a rank would wait.
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
    /// What every rank does, in order; none where the schedule cannot be: interleaving needs
    /// micro-batches in multiples of the ranks.
    pub fn orders(self, ranks: usize, micro_batches: usize) -> Option<Vec<Vec<Pass>>> {
        let order = |rank| match self {
            Schedule::Gpipe => Some(gpipe::order(micro_batches)),
            Schedule::OneForwardOneBackward => Some(one_forward::order(rank, ranks, micro_batches)),
            Schedule::Interleaved { chunks } => {
                interleaved::order(rank, ranks, micro_batches, chunks)
            }
            Schedule::ZeroBubble => Some(zero_bubble::order(rank, ranks, micro_batches)),
        };
        (0..ranks).map(order).collect()
    }

    /// Chunks per rank.
    pub fn chunks(self) -> usize {
        match self {
            Schedule::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }

    /// How many micro-batches, of all of a rank's chunks together, wait for backward at most.
    pub fn in_flight(self, rank: usize, ranks: usize, micro_batches: usize) -> f64 {
        let (p, m) = (ranks, micro_batches);
        match self {
            Schedule::Gpipe => m as f64,
            Schedule::OneForwardOneBackward => m.min(p - rank) as f64,
            Schedule::Interleaved { chunks } => {
                let warm = 2 * (p - rank - 1) + (chunks - 1) * p + 1;
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
