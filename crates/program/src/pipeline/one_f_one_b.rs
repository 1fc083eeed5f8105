//! 1F1B: forward passes until the first backward pass can run, and then both alternately.
//!
//! Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", PipeDream-Flush.

use super::{Kind, Pass};

/// Returns the order of a stage, which has one chunk.
pub(super) fn order(stage: usize, stages: usize, micro_batches: usize) -> Vec<Pass> {
    let ahead = micro_batches.min(stages - stage);
    let forward = |micro_batch| Pass::new(Kind::Forward, micro_batch, stage);
    let mut order: Vec<Pass> = (0..ahead).map(forward).collect();
    for micro_batch in 0..micro_batches {
        order.push(Pass::new(Kind::Backward, micro_batch, stage));
        if micro_batch + ahead < micro_batches {
            order.push(forward(micro_batch + ahead));
        }
    }
    order
}
