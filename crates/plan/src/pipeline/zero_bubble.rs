//! Zero-bubble: 1F1B with gradients of weights put off, so that later ranks need not wait for them.
//!
//! Qi et al., "Zero Bubble Pipeline Parallelism", ZB-H1: rank i puts off i of them, which keeps as
//! many micro-batches waiting on every rank as 1F1B does on the first.

use super::{Kind, Pass, one_forward};

/// The order of a rank.
pub(super) fn order(rank: usize, ranks: usize, micro_batches: usize) -> Vec<Pass> {
    let weight = |micro_batch| Pass::new(Kind::Weight, micro_batch, 0);
    let mut order = Vec::with_capacity(3 * micro_batches);
    for pass in one_forward::order(rank, ranks, micro_batches) {
        order.push(pass);
        if pass.kind == Kind::Backward && pass.micro_batch >= rank {
            order.push(weight(pass.micro_batch - rank));
        }
    }
    order.extend((micro_batches.saturating_sub(rank)..micro_batches).map(weight));
    order
}
