//! A reshape, which splits and merges dimensions: `x[b,s,g·d] -> y[b,s,g,d]`.
//!
//! Neighbouring dimensions of input and output that hold the same number of elements form a group. The first
//! dimensions of a group share an axis whose length is their greatest common divisor; the others stay whole.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::axis::LEADING;
use crate::{Axes, Declaration, Dim, Error, Kind, Operand};

/// A reshape; input x.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The shape of the output.
    pub shape: Vec<usize>,
}

impl Rule for Reshape {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let had = x.iter().product::<usize>();
        let has = self.shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
        if has != Some(had) || self.shape.contains(&0) {
            let has = has.map_or("too many".to_owned(), |has| has.to_string());
            let message =
                format!("shape {:?} has {has} elements, expected {had} of {x:?}", self.shape);
            return Err(Error::new(Kind::Operands, message));
        }
        let mut axes = Axes::default();
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for ((x, y), letter) in groups(x, &self.shape).into_iter().zip(LEADING) {
            pair(&mut axes, letter, [x, y], [&mut from, &mut to]);
        }
        if from.len() != x.len() || to.len() != self.shape.len() {
            let message = format!("{x:?} to {:?} has too many dimensions", self.shape);
            return Err(Error::new(Kind::Operands, message));
        }
        Ok(axes.declare([Operand::new("x", from)], [Operand::new("y", to)], 0.0).linear())
    }
}

/// Returns groups of neighbouring dimensions of both shapes that hold the same number of elements.
fn groups<'a>(x: &'a [usize], y: &'a [usize]) -> Vec<(&'a [usize], &'a [usize])> {
    let mut groups = Vec::new();
    let (mut x_rest, mut y_rest) = (x, y);
    while !x_rest.is_empty() || !y_rest.is_empty() {
        let (mut i, mut j) = (usize::from(!x_rest.is_empty()), usize::from(!y_rest.is_empty()));
        loop {
            let (of_x, of_y): (usize, usize) =
                (x_rest[..i].iter().product(), y_rest[..j].iter().product());
            match of_x.cmp(&of_y) {
                std::cmp::Ordering::Less if i < x_rest.len() => i += 1,
                std::cmp::Ordering::Greater if j < y_rest.len() => j += 1,
                _ => break,
            }
        }
        groups.push((&x_rest[..i], &y_rest[..j]));
        (x_rest, y_rest) = (&x_rest[i..], &y_rest[j..]);
    }
    groups
}

/// Declares a group: an axis that the first dimensions share, and axes that stay whole for the others.
fn pair(axes: &mut Axes, letter: char, shapes: [&[usize]; 2], dims: [&mut Vec<Dim>; 2]) {
    let shared = match shapes {
        [[x, ..], [y, ..]] => divisor(*x, *y),
        _ => 1,
    };
    let axis = axes.even(letter, shared);
    for (shape, dims) in shapes.into_iter().zip(dims) {
        let Some((first, rest)) = shape.split_first() else { continue };
        dims.push(axis.wide(first / shared));
        for length in rest {
            let name = char::from_u32('α' as u32 + axes.count() as u32).unwrap_or('?');
            dims.push(axes.never(name, *length));
        }
    }
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { divisor(b, a % b) }
}
