//! Savings: what a plan gives up of its time so that its stages fit their memory.

use thinwire_model::TensorId;

use crate::cost::{GradientTransport, Sharding};

/// A parameter that is divided otherwise than usual, or whose gradient is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterOverride {
    /// The block.
    pub block: usize,
    /// The parameter, as the first block of the class calls it.
    pub tensor: TensorId,
    /// How it is divided and its gradient travels.
    pub transport: GradientTransport,
}

impl ParameterOverride {
    /// Of which parameter it is.
    pub fn of(&self) -> (usize, TensorId) {
        (self.block, self.tensor)
    }

    /// Adds it to others, in the place of what was known of its parameter.
    pub fn put(self, others: &mut Vec<ParameterOverride>) {
        match others.iter_mut().find(|one| one.of() == self.of()) {
            Some(one) => *one = self,
            None => others.push(self),
        }
    }
}

/// What is given up, in all stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Savings {
    /// For every block, whether forward is computed again.
    pub recomputed: Vec<bool>,
    /// Parameters that are divided otherwise than usual.
    pub overrides: Vec<ParameterOverride>,
}

impl Savings {
    /// How a block's parameter is divided, if not as is usual.
    pub fn sharding(&self, of: (usize, TensorId)) -> Option<Sharding> {
        let parameter = self.overrides.iter().find(|one| one.of() == of)?;
        Some(parameter.transport.sharding)
    }
}
