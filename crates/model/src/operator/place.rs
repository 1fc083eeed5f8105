//! A tensor in a layout that the user asks for: `x[..,n] -> x[..,n]`.
//!
//! As a function this is the identity. For each dimension of the mesh, the layout is given by the axis that
//! is cut there, by `-` for replicas, or by `+` for partial sums. Two such operators in sequence are a
//! collective that the user chooses: for instance, `+` followed by `-` is an all-reduce, and `+`
//! followed by `s` is a reduce-scatter. As for every operator, the gradient is sharded if the tensor is
//! sharded, and otherwise replicated. So the backward pass undoes the forward pass.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{elementwise, inputs};
use crate::{Declaration, Error, Kind};

/// The identity, with a layout; input x.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// By the name of a dimension of the mesh, the letter of the axis that is cut there, `-` or `+`.
    /// Dimensions that are missing here are free.
    pub cuts: BTreeMap<String, char>,
}

impl Rule for Place {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let declaration = elementwise(x, &["x"], "y", 0.0)?;
        for (dim, letter) in &self.cuts {
            if !"+-".contains(*letter) && declaration.axis(*letter).is_none() {
                let message =
                    format!("{dim} cuts '{letter}', and x of shape {x:?} has no such axis");
                return Err(Error::new(Kind::Operands, message));
            }
        }
        Ok(declaration.linear())
    }
}
