//! Gates of a mixture of experts: `logits[..,e] -> gates[..,e]`.
//!
//! Shazeer et al., "Outrageously Large Neural Networks", section 2.1: the softmax over a token's
//! largest logits, zero for all other experts.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, split_last};
use crate::error::refuse_if;
use crate::{Axes, Declaration, Error, Kind, Operand};

/// The gates; input logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Experts that each token is sent to.
    pub chosen: usize,
}

/// The gradient of the logits; inputs gates and dgates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteBackward;

fn tokens(
    shape: &[usize],
    inputs: &[&'static str],
    output: &'static str,
) -> Result<Declaration, Error> {
    let (e, leading) = split_last(inputs[0], shape)?;
    let mut axes = Axes::default();
    let mut dims = axes.leading(leading)?;
    dims.push(axes.never('e', e));
    let flops = 6.0 * axes.points();
    let operands: Vec<_> = inputs.iter().map(|name| Operand::new(name, &dims[..])).collect();
    Ok(axes.declare(operands, [Operand::new(output, dims)], flops))
}

impl Rule for Route {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [logits] = inputs(shapes)?;
        let declaration = tokens(logits, &["logits"], "gates")?;
        let experts = logits.last().copied().unwrap_or(0);
        refuse_if(self.chosen == 0 || self.chosen > experts, Kind::Operands, || {
            format!("a token goes to {} experts, expected 1 to {experts}", self.chosen)
        })?;
        Ok(declaration)
    }
}

impl Rule for RouteBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [gates, _] = inputs(shapes)?;
        tokens(gates, &["gates", "dgates"], "dlogits")
    }
}
