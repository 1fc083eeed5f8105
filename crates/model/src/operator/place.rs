//! A tensor where the user wants it: `x[..,n] -> x[..,n]`.
//!
//! As a function this is the identity. The layout is given by dimensions of the mesh: the axis that
//! is cut there, `-` for replicas, `+` for partial sums. Two of them in a row are a collective of
//! the user's own, for instance `+` and then `-` an all-reduce, `+` and then `s` a reduce-scatter.
//! The gradient lies as every operator's does: sharded where the tensor is, replicated elsewhere,
//! so what one does forward the other undoes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{elementwise, inputs};
use crate::{Declaration, Error, Kind};

/// The identity, with a layout; input x.
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
