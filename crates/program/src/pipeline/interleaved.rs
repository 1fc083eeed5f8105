//! Interleaved 1F1B: every stage has several chunks, and micro-batches go around in groups.
//!
//! Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", section 2.2.

use super::{Kind, Pass};

/// Returns the order of a stage; `None` if the number of micro-batches is not a multiple of the stages.
pub(super) fn order(
    stage: usize,
    stages: usize,
    micro_batches: usize,
    chunks: usize,
) -> Option<Vec<Pass>> {
    if chunks == 0 || !micro_batches.is_multiple_of(stages) {
        return None;
    }
    let total = micro_batches * chunks;
    let ahead = total.min(2 * (stages - stage - 1) + (chunks - 1) * stages + 1);
    let group = stages * chunks;
    let pass = |kind, index: usize| {
        let micro_batch = index / group * stages + index % stages;
        let round = index % group / stages;
        // Backward comes through the chunks the other way.
        let round = if kind == Kind::Forward { round } else { chunks - 1 - round };
        Pass::new(kind, micro_batch, round * stages + stage)
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
