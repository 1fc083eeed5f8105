//! Gates of a mixture of experts: `logits[..,e] -> gates[..,e]`.
//!
//! Shazeer et al., "Outrageously Large Neural Networks", section 2.1: the softmax over a token's largest
//! logits, and zero for all other experts.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, rows};
use crate::{Declaration, Error, Kind};

/// The gates; input logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Number of experts to which each token is sent.
    pub chosen: usize,
}

/// The gradient of the logits; inputs gates and dgates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteBackward;

impl Rule for Route {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [logits] = inputs(shapes)?;
        let declaration = rows('e', logits, &["logits"], "gates", 6.0)?;
        let experts = logits.last().copied().unwrap_or(0);
        if self.chosen == 0 || self.chosen > experts {
            let message =
                format!("a token goes to {} experts, expected 1 to {experts}", self.chosen);
            return Err(Error::new(Kind::Operands, message));
        }
        Ok(declaration)
    }
}

impl Rule for RouteBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [gates, _] = inputs(shapes)?;
        rows('e', gates, &["gates", "dgates"], "dlogits", 6.0)
    }
}
