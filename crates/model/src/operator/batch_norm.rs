//! Batch norm, in two operators: `x[b,c,..] -> sum[c] squares[c]`, and then
//! `x[b,c,..] sum[c] squares[c] gain[c] bias[c] -> y[b,c,..]`.
//!
//! Ioffe, Szegedy, "Batch Normalization". If the batch is cut, sums are partial. So under every
//! sharding, statistics are computed over the whole batch.

use serde::{Deserialize, Serialize};

use super::operand::{inputs, norm};
use super::{Epsilon, Rule};
use crate::{Axes, Declaration, Dim, Error, Kind};

/// The sum and the sum of squares of every channel; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Moments;

/// The gradient of x; inputs x, dsum, dsquares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MomentsBackward;

/// Normalises each channel to mean zero and variance one, then applies gain and bias; inputs x, sum,
/// squares, gain, bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm(pub Epsilon);

/// The gradients of all inputs; inputs x, sum, squares, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchNormBackward(pub BatchNorm);

/// Declares operands that are images, with at least two dimensions, or one number per channel.
fn images(
    x: &[usize],
    operands: [&[&'static str]; 2],
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    if x.len() < 2 {
        let message = format!("x has shape {x:?}, expected a batch and channels");
        return Err(Error::new(Kind::Operands, message));
    }
    let mut axes = Axes::default();
    let letters = ['b', 'c', 'y', 'x', 'z'];
    let dims: Vec<Dim> = x.iter().zip(letters).map(|(n, letter)| axes.even(letter, *n)).collect();
    Ok(norm(axes, &dims, dims[1], operands, flops_per_element))
}

impl Rule for Moments {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        images(x, [&["x"], &["sum", "squares"]], 3.0)
    }
}

impl Rule for MomentsBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        images(x, [&["x", "dsum", "dsquares"], &["dx"]], 3.0)
    }
}

impl Rule for BatchNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _, _, _] = inputs(shapes)?;
        self.0.check()?;
        images(x, [&["x", "sum", "squares", "gain", "bias"], &["y"]], 4.0)
    }
}

impl Rule for BatchNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _, _, _] = inputs(shapes)?;
        let gradients = &["dx", "dsum", "dsquares", "dgain", "dbias"];
        images(x, [&["x", "sum", "squares", "gain", "dy"], gradients], 9.0)
    }
}
