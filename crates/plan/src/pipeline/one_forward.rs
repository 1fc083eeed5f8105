//! 1F1B: as many forwards as it takes until the first backward comes back, then both in turns.
//!
//! Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", PipeDream-Flush.

use super::{Kind, Pass};

/// The order of a rank.
pub(super) fn order(rank: usize, ranks: usize, micro_batches: usize) -> Vec<Pass> {
    let ahead = micro_batches.min(ranks - rank);
    let forward = |micro_batch| Pass::new(Kind::Forward, micro_batch, 0);
    let mut order: Vec<Pass> = (0..ahead).map(forward).collect();
    for micro_batch in 0..micro_batches {
        order.push(Pass::new(Kind::Backward, micro_batch, 0));
        if micro_batch + ahead < micro_batches {
            order.push(forward(micro_batch + ahead));
        }
    }
    order
}
