//! Batch norm, in two operators: `x[b,c,..] -> sum[c] squares[c]`, and then
//! `x[b,c,..] sum[c] squares[c] gain[c] bias[c] -> y[b,c,..]`.
//!
//! Ioffe, Szegedy, "Batch Normalization". Sums are partial where the batch is cut, so that
//! statistics are those of the whole batch under every sharding.

use serde::{Deserialize, Serialize};

use super::operand::inputs;
use super::{Epsilon, Rule};
use crate::error::refuse_if;
use crate::{Array, Axes, Declaration, Dim, Error, Kind, Operand, Region};

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

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let mut sum = Array::full(region.output_shape(0), 0.0);
        let mut squares = sum.clone();
        Array::each_index(inputs[0].shape(), |at| {
            let x = inputs[0].at(at);
            sum.add(&at[1..2], x);
            squares.add(&at[1..2], x * x);
        });
        vec![sum, squares]
    }
}

impl Rule for MomentsBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        images(x, &[("x", true), ("dsum", false), ("dsquares", false)], &[("dx", true)], 3.0)
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, dsum, dsquares) = (inputs[0], inputs[1], inputs[2]);
        let dx = |at: &[usize]| dsum.at(&at[1..2]) + 2.0 * x.at(at) * dsquares.at(&at[1..2]);
        vec![Array::from_fn(x.shape(), dx)]
    }
}

/// Returns the number of values of a channel, their mean, and one over their standard deviation.
fn statistics(epsilon: Epsilon, region: &Region<'_>, of: [f64; 2]) -> (f64, f64, f64) {
    let [sum, squares] = of;
    let axes = region.declaration().axes.iter().filter(|axis| axis.name != 'c');
    let count = axes.map(|axis| axis.length as f64).product();
    let mean = sum / count;
    (count, mean, 1.0 / (squares / count - mean * mean + epsilon.value).sqrt())
}

impl Rule for BatchNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _, _, _] = inputs(shapes)?;
        self.0.check()?;
        let operands =
            [("x", true), ("sum", false), ("squares", false), ("gain", false), ("bias", false)];
        images(x, &operands, &[("y", true)], 4.0)
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let x = inputs[0];
        let y = Array::from_fn(x.shape(), |at| {
            let channel = |input: usize| inputs[input].at(&at[1..2]);
            let (_, mean, scale) = statistics(self.0, region, [channel(1), channel(2)]);
            (x.at(at) - mean) * scale * channel(3) + channel(4)
        });
        vec![y]
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

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, dy) = (inputs[0], inputs[4]);
        let zero = Array::full(region.output_shape(1), 0.0);
        let mut of_channels = [zero.clone(), zero.clone(), zero.clone(), zero];
        let dx = Array::from_fn(x.shape(), |at| {
            let (c, dy) = (&at[1..2], dy.at(at));
            let of = [inputs[1].at(c), inputs[2].at(c)];
            let (count, mean, scale) = statistics(self.0.0, region, of);
            let (centred, scaled) = (x.at(at) - mean, dy * inputs[3].at(c) * scale);
            let dvariance = -0.5 * scaled * centred * scale * scale;
            let dmean = -scaled - 2.0 * mean * dvariance;
            let found = [dmean / count, dvariance / count, dy * centred * scale, dy];
            of_channels.iter_mut().zip(found).for_each(|(sum, value)| sum.add(c, value));
            scaled
        });
        std::iter::once(dx).chain(of_channels).collect()
    }
}
