//! A dimension taken apart or put together: `x[..,o·(i+j)] <-> y[..,o·i] z[..,o·j]`.
//!
//! The axis o runs over equal pieces, each of which has all sections in it. Where there is one
//! piece, sections lie one after the other; where heads are pieces, they can be cut.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::axis::LEADING;
use crate::error::refuse_if;
use crate::{Array, Axes, Declaration, Dim, Error, Kind, Operand, Region};

/// A dimension taken apart; input x.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpack {
    /// The dimension.
    pub dim: usize,
    /// The pieces of the dimension; each has all sections in it.
    pub pieces: usize,
    /// The elements of each section within a piece.
    pub sections: Vec<usize>,
}

/// A dimension put together; one input for each section.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// The dimension.
    pub dim: usize,
    /// The pieces of the dimension; each has all sections in it.
    pub pieces: usize,
    /// The elements of each section within a piece.
    pub sections: Vec<usize>,
}

/// Names of the sections as operands.
const NAMES: [&str; 8] =
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/// Declares the whole and its sections.
fn operands(
    unpack: &Unpack,
    shape: &[usize],
    name: &'static str,
) -> Result<(Axes, Operand, Vec<Operand>), Error> {
    refuse_if(
        unpack.sections.is_empty() || unpack.sections.len() > NAMES.len(),
        Kind::Operands,
        || format!("there are {} sections, expected 1 to 8", unpack.sections.len()),
    )?;
    refuse_if(unpack.dim >= shape.len().min(LEADING.len()), Kind::Operands, || {
        format!("shape {shape:?} has no dimension {}", unpack.dim)
    })?;
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

/// Maps an index within a section to the index within the whole dimension.
fn section(unpack: &Unpack, index: usize, local: usize) -> impl Fn(usize) -> usize + '_ {
    let before: usize = unpack.sections[..index].iter().sum();
    let (length, whole) = (unpack.sections[index], unpack.sections.iter().sum::<usize>());
    debug_assert_eq!(local % length.max(1), 0);
    move |place| place / length * whole + before + place % length
}

impl Rule for Unpack {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let (axes, whole, parts) = operands(self, x, "x")?;
        Ok(axes.declare([whole], parts, 0.0).linear())
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let part = |index: usize| {
            let shape = region.output_shape(index);
            let from = section(self, index, shape[self.dim]);
            Array::from_fn(shape, |at| {
                let mut place = at.to_vec();
                place[self.dim] = from(at[self.dim]);
                inputs[0].at(&place)
            })
        };
        (0..self.sections.len()).map(part).collect()
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
        refuse_if(
            shapes.is_empty() || shapes.len() != self.sections.len(),
            Kind::Operands,
            || format!("has {} inputs, expected {}", shapes.len(), self.sections.len()),
        )?;
        let (axes, whole, parts) = operands(&self.unpack(), shapes[0], "y")?;
        Ok(axes.declare(parts, [whole], 0.0).linear())
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let unpack = self.unpack();
        let mut y = Array::full(region.output_shape(0), 0.0);
        for (index, input) in inputs.iter().enumerate() {
            let to = section(&unpack, index, input.shape()[self.dim]);
            Array::each_index(input.shape(), |at| {
                let mut place = at.to_vec();
                place[self.dim] = to(at[self.dim]);
                y.set(&place, input.at(at));
            });
        }
        vec![y]
    }
}
