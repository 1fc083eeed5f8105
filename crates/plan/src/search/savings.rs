//! Savings: time that a plan gives up to make its stages fit their memory.

use thinwire_model::TensorId;

use crate::cost::{GradientTransport, Sharding};

/// Parameter that is not sharded in the usual way, or whose gradient is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterOverride {
    /// Block of the parameter.
    pub block: usize,
    /// Parameter, as the first block of the class names it.
    pub tensor: TensorId,
    /// Sharding and gradient transport.
    pub transport: GradientTransport,
}

impl ParameterOverride {
    /// Returns the block and tensor that identify the parameter.
    pub fn of(&self) -> (usize, TensorId) {
        (self.block, self.tensor)
    }

    /// Adds the override to `others`, replacing an earlier one of the same parameter.
    pub fn put(self, others: &mut Vec<ParameterOverride>) {
        match others.iter_mut().find(|one| one.of() == self.of()) {
            Some(one) => *one = self,
            None => others.push(self),
        }
    }
}

/// Savings of all stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Savings {
    /// Whether each block recomputes the forward pass in the backward pass.
    pub recomputed: Vec<bool>,
    /// Parameters with another sharding or transport than the usual one.
    pub overrides: Vec<ParameterOverride>,
}

impl Savings {
    /// Returns the sharding of a block's parameter, if it differs from the usual one.
    pub fn sharding(&self, block: usize, tensor: TensorId) -> Option<Sharding> {
        let parameter = self.overrides.iter().find(|one| one.of() == (block, tensor))?;
        Some(parameter.transport.sharding)
    }
}
