//! Batch norm, in two operators: `x[b,c,..] -> sum[c] squares[c]`, and then
//! `x[b,c,..] sum[c] squares[c] gain[c] bias[c] -> y[b,c,..]`.
//!
//! Ioffe, Szegedy, "Batch Normalization". Sums are partial where the batch is cut, so that
//! statistics are those of the whole batch under every sharding.

use serde::{Deserialize, Serialize};

use super::operand::inputs;
use super::{Epsilon, Rule};
use crate::error::refuse_if;
use crate::{Axes, Declaration, Dim, Error, Kind, Operand};

/// Sums and squares of every channel; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Moments;

/// The gradient of x; inputs x, dsum, dsquares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MomentsBackward;

/// Mean zero and variance one within a channel; inputs x, sum, squares, gain, bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm(pub Epsilon);

/// The gradients of all inputs; inputs x, sum, squares, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchNormBackward(pub BatchNorm);

/// Declares operands that are images, of more than one dimension (`true`), or channels.
fn images(
    x: &[usize],
    inputs: &[(&'static str, bool)],
    outputs: &[(&'static str, bool)],
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    refuse_if(x.len() < 2, Kind::Operands, || {
        format!("x has shape {x:?}, expected a batch and channels")
    })?;
    let mut axes = Axes::default();
    let letters = ['b', 'c', 'y', 'x', 'z'];
    let dims: Vec<Dim> = x.iter().zip(letters).map(|(n, letter)| axes.even(letter, *n)).collect();
    let flops = flops_per_element * axes.points();
    let operand = |(name, whole): &(&'static str, bool)| match whole {
        true => Operand::new(name, &dims[..]),
        false => Operand::new(name, [dims[1]]),
    };
    let all = |list: &[(&'static str, bool)]| list.iter().map(operand).collect::<Vec<_>>();
    Ok(axes.declare(all(inputs), all(outputs), flops))
}

impl Rule for Moments {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        images(x, &[("x", true)], &[("sum", false), ("squares", false)], 3.0)
    }
}

impl Rule for MomentsBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        images(x, &[("x", true), ("dsum", false), ("dsquares", false)], &[("dx", true)], 3.0)
    }
}

impl Rule for BatchNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _, _, _] = inputs(shapes)?;
        self.0.check()?;
        let operands =
            [("x", true), ("sum", false), ("squares", false), ("gain", false), ("bias", false)];
        images(x, &operands, &[("y", true)], 4.0)
    }
}

impl Rule for BatchNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _, _, _] = inputs(shapes)?;
        let operands =
            [("x", true), ("sum", false), ("squares", false), ("gain", false), ("dy", true)];
        let outputs = [
            ("dx", true),
            ("dsum", false),
            ("dsquares", false),
            ("dgain", false),
            ("dbias", false),
        ];
        images(x, &operands, &outputs, 9.0)
    }
}
