//! Schedules: the order of passes on each stage of a pipeline.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Pass, gpipe, interleaved, one_f_one_b, zero_bubble};

/// A pipeline schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// A backward pass as soon as possible, then forward and backward alternately.
    OneForwardOneBackward,
    /// 1F1B with several chunks per stage.
    Interleaved {
        /// Chunks per stage.
        chunks: usize,
    },
    /// 1F1B in which gradients of weights are delayed until a stage would otherwise wait.
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
    /// Returns the passes of every stage, in order; `None` if the schedule is impossible. Interleaving needs
    /// a number of micro-batches that is a multiple of the stages.
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

    /// Returns the largest number of micro-batches whose activations wait for the backward pass at the
    /// same time, counting all chunks of a stage.
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
