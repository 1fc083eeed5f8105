//! A tensor where the user wants it: `x[..,n] -> x[..,n]`.
//!
//! As a function this is the identity. What it adds is where the tensor lies, by dimensions of the
//! mesh: which axis is cut there, `-` for replicas, `+` for partial sums. Two of them in a row are a
//! collective of the user's own, for instance `+` and then `-` an all-reduce, `+` and then `s` a
//! reduce-scatter. The gradient lies as every operator's does: sharded where the tensor is,
//! replicated elsewhere, so what one does forward the other undoes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Rule, inputs};
use crate::array::Array;
use crate::axis::{Axes, Declaration, Operand};
use crate::backward::Gradients;
use crate::error::{Error, Kind};
use crate::region::Region;

/// The same tensor; input x.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// By the name of a dimension of the mesh, the letter of the axis that is cut there, `-` or
    /// `+`. Of other dimensions nothing is said.
    pub cuts: BTreeMap<String, char>,
}

impl Rule for Place {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let mut axes = Axes::default();
        let dims = axes.all(x)?;
        for (dim, letter) in &self.cuts {
            if !"+-".contains(*letter) && axes.named(*letter).is_none() {
                let message =
                    format!("{dim} cuts '{letter}', and x of shape {x:?} has no such axis");
                return Err(Error::new(Kind::Operands, message));
            }
        }
        let outputs = [Operand::new("y", &dims[..])];
        Ok(axes.declare([Operand::new("x", dims)], outputs, 0.0).linear())
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].clone()]
    }

    fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        let dy = node.given(0)?;
        let dx = node.apply(Place::default(), &[dy])?;
        node.give(0, dx[0]);
        Ok(())
    }
}
