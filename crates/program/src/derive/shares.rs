//! Unequal work: the micro-batches of every part of the batch.

use thinwire_model::{Placement, Training};

use super::PassList;
use crate::{Error, Held, Instruction, Plan};

/// Returns the micro-batches of the whole batch that a part does, each with the part of it that is
/// done: parts take what there is one after the other.
pub fn sources(plan: &Plan, first: usize) -> Vec<(usize, usize)> {
    let Some(share) = plan.shares.get(first) else { return Vec::new() };
    let before: usize = plan.shares[..first].iter().map(|share| share.micro_batches).sum();
    let parts = plan.shares.len();
    (before..before + share.micro_batches).map(|at| (at / parts, at % parts)).collect()
}

/// Checks that parts of the batch which do unequal work exchange nothing within a micro-batch.
pub fn check_alike(
    plan: &Plan,
    phases: &[PassList],
    (slots, training): (&[Held], &Training),
) -> Result<(), Error> {
    if plan.shares.is_empty() {
        return Ok(());
    }
    let refused = |slot: usize| {
        let name = &training.graph.tensors[slots[slot].tensor].name;
        let message = format!("parts of the mesh do unequal work and share '{name}' in it");
        Error::invalid(format!("{message}, expected the first dimension to cut batches alone"))
    };
    for instruction in phases.iter().flat_map(|(_, list)| list) {
        match instruction {
            Instruction::Convert(convert)
                if convert.step.mesh_dim == 0 && convert.step.sent(2) > 0.0 =>
            {
                return Err(refused(convert.from));
            }
            // Of one dimension are positions, which are the same for all.
            Instruction::Load { to }
                if slots[*to].layout.0[0] == Placement::Replicated
                    && slots[*to].shape.len() > 1 =>
            {
                return Err(refused(*to));
            }
            _ => {}
        }
    }
    Ok(())
}
