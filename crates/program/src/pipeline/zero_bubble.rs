//! Zero-bubble: 1F1B in which gradients of weights are delayed, so that later stages need not wait for them.
//!
//! Qi et al., "Zero Bubble Pipeline Parallelism", ZB-H1: stage i delays i gradients of weights, so that
//! as many micro-batches wait on every stage as on the first stage under 1F1B.

use super::{Kind, Pass, one_f_one_b};

/// Returns the order of a stage, which has one chunk.
pub(super) fn order(stage: usize, stages: usize, micro_batches: usize) -> Vec<Pass> {
    let weight = |micro_batch| Pass::new(Kind::Weight, micro_batch, stage);
    let mut order = Vec::with_capacity(3 * micro_batches);
    for pass in one_f_one_b::order(stage, stages, micro_batches) {
        order.push(pass);
        if pass.kind == Kind::Backward && pass.micro_batch >= stage {
            order.push(weight(pass.micro_batch - stage));
        }
    }
    order.extend((micro_batches.saturating_sub(stage)..micro_batches).map(weight));
    order
}
