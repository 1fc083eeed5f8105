//! The check that orders come to an end, whoever wrote them.

use std::collections::HashSet;

use super::{Kind, Pass};
use crate::Error;

/// Returns whether the gradients of weights have passes of their own.
pub fn defers_weights(orders: &[Vec<Pass>]) -> bool {
    orders.iter().flatten().any(|pass| pass.kind == Kind::Weight)
}

/// Checks that the orders of all stages come to an end with every pass done once.
///
/// # Errors
/// If a stage waits for ever, does a pass twice or one that is not its own, or leaves one out.
pub fn check(orders: &[Vec<Pass>], chunks: usize, micro_batches: usize) -> Result<(), Error> {
    let mut done: HashSet<Pass> = HashSet::new();
    let mut at = vec![0; orders.len()];
    let ready = |pass: &Pass, done: &HashSet<Pass>| match pass.kind {
        Kind::Forward => pass.chunk == 0 || done.contains(&Pass { chunk: pass.chunk - 1, ..*pass }),
        Kind::Backward if pass.chunk + 1 == chunks => {
            done.contains(&Pass { kind: Kind::Forward, ..*pass })
        }
        Kind::Backward => done.contains(&Pass { chunk: pass.chunk + 1, ..*pass }),
        // Tensors that weights' gradients read are freed after them, so they come last.
        Kind::Weight => {
            chunks == orders.len() && done.contains(&Pass { kind: Kind::Backward, ..*pass })
        }
    };
    loop {
        let mut moved = false;
        for (stage, order) in orders.iter().enumerate() {
            while let Some(pass) = order.get(at[stage]).filter(|pass| ready(pass, &done)) {
                if pass.chunk % orders.len() != stage || !done.insert(*pass) {
                    return Err(Error::invalid(format!("stage {stage} has no place for {pass:?}")));
                }
                at[stage] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let expected = if defers_weights(orders) { 3 } else { 2 } * chunks * micro_batches;
    let planned: usize = orders.iter().map(Vec::len).sum();
    if done.len() != expected || planned != expected {
        let found = done.len();
        return Err(Error::invalid(format!(
            "orders run {found} of {planned} passes, expected {expected}"
        )));
    }
    Ok(())
}
