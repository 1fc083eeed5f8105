//! Splitting a dimension into sections, or joining them: `x[..,o·(i+j)] <-> y[..,o·i] z[..,o·j]`.
//!
//! The axis o runs over equal pieces, each of which contains a part of every section. With one piece,
//! the sections follow each other. If the pieces are heads, the dimension can be cut between them.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::axis::LEADING;
use crate::{Axes, Declaration, Dim, Error, Kind, Operand};

/// Splits a dimension into sections, each of which becomes a tensor; input x.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpack {
    /// The dimension.
    pub dim: usize,
    /// Number of pieces of the dimension, each of which contains a part of every section.
    pub pieces: usize,
    /// Number of elements of each section within a piece.
    pub sections: Vec<usize>,
}

/// Joins sections of a dimension; one input per section.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// The dimension.
    pub dim: usize,
    /// Number of pieces of the dimension, each of which contains a part of every section.
    pub pieces: usize,
    /// Number of elements of each section within a piece.
    pub sections: Vec<usize>,
}

/// Names of the sections as operands.
const NAMES: [&str; 8] =
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/// Declares the whole tensor and its sections.
fn operands(
    unpack: &Unpack,
    shape: &[usize],
    name: &'static str,
) -> Result<(Axes, Operand, Vec<Operand>), Error> {
    if unpack.sections.is_empty() || unpack.sections.len() > NAMES.len() {
        let message = format!("there are {} sections, expected 1 to 8", unpack.sections.len());
        return Err(Error::new(Kind::Operands, message));
    }
    if unpack.dim >= shape.len().min(LEADING.len()) {
        let message = format!("shape {shape:?} has no dimension {}", unpack.dim);
        return Err(Error::new(Kind::Operands, message));
    }
    let mut axes = Axes::default();
    let mut lengths = shape.to_vec();
    lengths[unpack.dim] = unpack.pieces;
    let dims = axes.all(&lengths)?;
    let with = |width: usize| -> Vec<Dim> {
        let sized =
            |(at, dim): (usize, &Dim)| if at == unpack.dim { dim.wide(width) } else { *dim };
        dims.iter().enumerate().map(sized).collect()
    };
    let whole = Operand::new(name, with(unpack.sections.iter().sum()));
    let named = unpack.sections.iter().zip(NAMES);
    let parts = named.map(|(section, name)| Operand::new(name, with(*section))).collect();
    Ok((axes, whole, parts))
}

impl Rule for Unpack {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let (axes, whole, parts) = operands(self, x, "x")?;
        Ok(axes.declare([whole], parts, 0.0).linear())
    }
}

impl Pack {
    /// Returns the operator that undoes this one.
    pub(crate) fn unpack(&self) -> Unpack {
        Unpack { dim: self.dim, pieces: self.pieces, sections: self.sections.clone() }
    }
}

impl Rule for Pack {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        if shapes.is_empty() || shapes.len() != self.sections.len() {
            let message = format!("has {} inputs, expected {}", shapes.len(), self.sections.len());
            return Err(Error::new(Kind::Operands, message));
        }
        let (axes, whole, parts) = operands(&self.unpack(), shapes[0], "y")?;
        Ok(axes.declare(parts, [whole], 0.0).linear())
    }
}
