//! Norms, softmax and masks, means and dropout.

use thinwire_model::{
    Dropout, Epsilon, Error, Fill, Initial, LayerNorm, RmsNorm, Softmax, Summed, TensorId,
};

use super::shape::axes;
use crate::half::{Half, Stage, decimal, unary};
use crate::import::{Call, Importer, dimension, refuse};
use crate::value::Value;

/// Imports layer norm over the last dimension.
pub(super) fn layer_norm(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let [x, gain] = [importer.tensor(0)?, importer.learned(1, Initial::Ones)?];
    let shape = last_axis(importer, x)?;
    let bias = match importer.call.has(2) {
        true => importer.learned(2, Initial::Zeros)?,
        false => importer.part("zeros", Fill { shape, value: 0.0 }, &[])?,
    };
    importer.give(LayerNorm(epsilon(importer.call)), &[x, gain, bias])
}

/// Imports RMS norm over the last dimension.
pub(super) fn rms_norm(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let [x, gain] = [importer.tensor(0)?, importer.learned(1, Initial::Ones)?];
    last_axis(importer, x)?;
    importer.give(RmsNorm(epsilon(importer.call)), &[x, gain])
}

/// Returns the number that a norm adds to a variance.
pub(super) fn epsilon(call: &Call<'_>) -> Epsilon {
    Epsilon { value: decimal(call.float("epsilon", 1e-5)) }
}

/// Returns the last dimension as a shape, if it is the axis.
fn last_axis(importer: &Importer<'_>, x: TensorId) -> Result<Vec<usize>, Error> {
    let shape = &importer.graph.tensors[x].shape;
    let axis = importer.call.integer("axis", -1);
    match shape.last() {
        Some(last) if dimension(axis, shape.len())? + 1 == shape.len() => Ok(vec![*last]),
        _ => Err(refuse(format!("axis {axis} of shape {shape:?}, expected the last one"))),
    }
}

/// Imports softmax over the last dimension. Its logarithm is allowed only as the output, where the loss
/// replaces it.
pub(super) fn softmax(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let value = importer.value(0)?.clone();
    let shape = importer.shape(&value);
    let axis = importer.call.integer("axis", if importer.version < 13 { 1 } else { -1 });
    if dimension(axis, shape.len())? + 1 != shape.len() {
        return Err(refuse(format!("axis {axis} of shape {shape:?}, expected the last one")));
    }
    if importer.call.operator == "LogSoftmax" {
        return match importer.is_output() {
            true => Ok(value),
            false => Err(refuse("LogSoftmax is only supported as the output")),
        };
    }
    let (x, causal) = match value {
        Value::Half(Half { stage: Stage::Causal, x, .. }) => (x, true),
        _ => (importer.tensor(0)?, false),
    };
    importer.give(Softmax { causal }, &[x])
}

/// Imports the mean or the sum over some dimensions.
pub(super) fn reduce(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let value = importer.value(0)?.clone();
    let dimensions = importer.shape(&value).len();
    let axes = axes(importer, dimensions)?.unwrap_or_else(|| (0..dimensions).collect());
    let becomes =
        if importer.call.integer("keepdims", 1) == 0 { Summed::Away } else { Summed::ToOne };
    let last = axes[..] == [dimensions.wrapping_sub(1)] && becomes == Summed::ToOne;
    if let (Value::Half(half), true) = (&value, last)
        && let Some(stage) = unary(half.stage, importer.call.operator)
    {
        return Ok(Value::Half(Half { stage, ..half.clone() }));
    }
    let x = importer.tensor(0)?;
    if last && importer.call.operator == "ReduceMean" {
        return Ok(Value::Half(Half::new(Stage::Mean, x, importer.call.name.clone())));
    }
    let reduced = match importer.call.operator {
        "ReduceMean" => importer.mean(&importer.call.name, x, &axes, becomes),
        _ => importer.sum(&importer.call.name, x, &axes, becomes),
    };
    reduced.map(Value::Tensor)
}

/// Imports dropout with its rate.
pub(super) fn dropout(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let rate = match importer.call.has(1) {
        true => importer.constant(1)?.single().unwrap_or(0.0),
        false => importer.call.float("ratio", 0.5),
    };
    if rate == 0.0 {
        return Ok(importer.value(0)?.clone());
    }
    let x = importer.tensor(0)?;
    let stream = importer.graph.nodes.len() as u32;
    importer.give(Dropout { rate, stream }, &[x])
}
