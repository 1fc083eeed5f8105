//! Unequal work: which part of the batch does which micro-batches.

use thinwire_model::Training;

use super::Phase;
use crate::error::Error;
use crate::spmd::plan::{Plan, invalid};
use crate::spmd::program::{Convert, Held, Instruction};

/// Which micro-batches of the whole batch a part does, and which part of them, if that is not its
/// own: parts take what there is one after the other.
pub fn sources(plan: &Plan, first: usize) -> Vec<(usize, usize)> {
    let Some(share) = plan.shares.get(first) else { return Vec::new() };
    let before: usize = plan.shares[..first].iter().map(|share| share.micro_batches).sum();
    let parts = plan.shares.len();
    (before..before + share.micro_batches).map(|at| (at / parts, at % parts)).collect()
}

/// Where parts of the batch do unequal work, they exchange nothing within a micro-batch.
pub fn check_alike(
    plan: &Plan,
    phases: &[Phase],
    (slots, training): (&[Held], &Training),
) -> Result<(), Error> {
    let converts = phases.iter().flat_map(|(_, list)| list).filter_map(|it| match it {
        Instruction::Convert(convert) => Some(convert),
        _ => None,
    });
    let sent = |convert: &&Convert| convert.step.mesh_dim == 0 && convert.step.sent(2) > 0.0;
    match converts.into_iter().find(sent).filter(|_| !plan.shares.is_empty()) {
        None => Ok(()),
        Some(convert) => {
            let name = &training.graph.tensors[slots[convert.from].tensor].name;
            let message = format!("parts of the mesh do unequal work and exchange '{name}' in it");
            Err(invalid(format!("{message}, expected the first dimension to cut batches alone")))
        }
    }
}
