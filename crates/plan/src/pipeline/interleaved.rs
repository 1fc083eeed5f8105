//! Interleaved 1F1B: every rank has several chunks, and micro-batches go around in groups.
//!
//! Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", section 2.2.

use super::{Kind, Pass};

/// The order of a rank; none if micro-batches are no multiple of the ranks.
pub(super) fn order(
    rank: usize,
    ranks: usize,
    micro_batches: usize,
    chunks: usize,
) -> Option<Vec<Pass>> {
    if chunks == 0 || !micro_batches.is_multiple_of(ranks) {
        return None;
    }
    let total = micro_batches * chunks;
    let ahead = total.min(2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1);
    let group = ranks * chunks;
    let pass = |kind, index: usize| {
        let micro_batch = index / group * ranks + index % ranks;
        let chunk = index % group / ranks;
        match kind {
            Kind::Forward => Pass::new(kind, micro_batch, chunk),
            _ => Pass::new(kind, micro_batch, chunks - 1 - chunk),
        }
    };
    let mut order: Vec<Pass> = (0..ahead).map(|index| pass(Kind::Forward, index)).collect();
    for index in 0..total {
        order.push(pass(Kind::Backward, index));
        if index + ahead < total {
            order.push(pass(Kind::Forward, index + ahead));
        }
    }
    Some(order)
}
