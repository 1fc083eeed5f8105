//! GPipe: all forwards, then all backwards.
//!
//! Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism".

use super::{Kind, Pass};

/// The order of every rank.
pub(super) fn order(micro_batches: usize) -> Vec<Pass> {
    let all = |kind| (0..micro_batches).map(move |micro_batch| Pass::new(kind, micro_batch, 0));
    all(Kind::Forward).chain(all(Kind::Backward)).collect()
}
