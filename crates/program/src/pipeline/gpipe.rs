//! GPipe: all forward passes, then all backward passes.
//!
//! Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism".

use super::{Kind, Pass};

/// Returns the order of a stage, which has one chunk.
pub(super) fn order(stage: usize, micro_batches: usize) -> Vec<Pass> {
    let all = |kind| (0..micro_batches).map(move |micro_batch| Pass::new(kind, micro_batch, stage));
    all(Kind::Forward).chain(all(Kind::Backward)).collect()
}
