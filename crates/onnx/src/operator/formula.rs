//! Formulas of two operands: their next stages, and their ends.

use thinwire_model::{Activation, Epsilon, Error, Initial, LayerNorm, Operator, RmsNorm, TensorId};

use crate::half::{Half, Other, Stage, binary, unary};
use crate::import::Importer;
use crate::value::Value;

/// Returns the next stage of a formula, or the operator with which it ends; `None` if there is no formula.
pub(super) fn visit(
    importer: &mut Importer<'_>,
    left: &Value,
    right: &Value,
) -> Result<Option<Value>, Error> {
    if let Value::Half(half) = left
        && let Some(value) = end(importer, half, right)?
    {
        return Ok(Some(value));
    }
    if let ("Div", Value::Constant(one), Value::Half(half)) = (importer.call.operator, left, right)
        && one.single() == Some(1.0)
        && let Some(stage) = unary(half.stage, "Reciprocal")
    {
        return Ok(Some(Value::Half(Half { stage, ..half.clone() })));
    }
    let (x, stage, half) = match left {
        Value::Half(half) => (half.x, Some(half.stage), Some(half)),
        Value::Tensor(x) => (*x, None, None),
        _ => return Ok(None),
    };
    let other = match right {
        Value::Constant(constant) => constant.single().map(Other::Number),
        Value::Tensor(id) if *id == x => Some(Other::Stage(None)),
        Value::Half(other) if other.x == x => Some(Other::Stage(Some(other.stage))),
        _ => None,
    };
    let next = other.and_then(|other| Some((binary(importer.call.operator, stage, other)?, other)));
    let Some((stage, other)) = next else { return Ok(None) };
    let mut onward = match half {
        Some(half) => half.onward(stage, other),
        None => Half::new(stage, x, importer.call.name.clone()),
    };
    if let Value::Half(other) = right {
        onward.epsilon = onward.epsilon.max(other.epsilon);
    }
    Ok(Some(Value::Half(onward)))
}

/// Returns the operator with which a formula ends, if it ends with this operand.
fn end(importer: &mut Importer<'_>, half: &Half, right: &Value) -> Result<Option<Value>, Error> {
    let itself = matches!(right, Value::Tensor(id) if *id == half.x);
    let number = match right {
        Value::Constant(constant) => constant.single(),
        _ => None,
    };
    let half_of_it = match right {
        Value::Tensor(id) => scaled(importer, *id) == Some((0.5, half.x)),
        _ => false,
    };
    let gelu = if half.exact { Activation::GeluErf } else { Activation::Gelu };
    let epsilon = Epsilon { value: half.epsilon };
    match (importer.call.operator, half.stage) {
        ("Mul", Stage::Sigmoid) if itself => importer.give(Activation::Silu, &[half.x]).map(Some),
        ("Mul", Stage::Phi) if itself => importer.give(gelu, &[half.x]).map(Some),
        ("Mul", Stage::OnePlus) if half_of_it => importer.give(gelu, &[half.x]).map(Some),
        ("Mul", Stage::Twice) if number == Some(0.5) => importer.give(gelu, &[half.x]).map(Some),
        ("Mul", Stage::Normal) => Ok(feature(importer, half, right, Initial::Ones)?.map(|gain| {
            Value::Half(Half { stage: Stage::ScaledNormal, gain: Some(gain), ..half.clone() })
        })),
        ("Mul", Stage::RootNormal) => match feature(importer, half, right, Initial::Ones)? {
            Some(gain) => importer.give(RmsNorm(epsilon), &[half.x, gain]).map(Some),
            None => Ok(None),
        },
        ("Add", Stage::ScaledNormal) => {
            match (half.gain, feature(importer, half, right, Initial::Zeros)?) {
                (Some(gain), Some(bias)) => {
                    importer.give(LayerNorm(epsilon), &[half.x, gain, bias]).map(Some)
                }
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Returns a weight with one number per feature.
fn feature(
    importer: &mut Importer<'_>,
    half: &Half,
    value: &Value,
    initial: Initial,
) -> Result<Option<TensorId>, Error> {
    let features = importer.graph.tensors[half.x].shape.last().copied();
    match value {
        Value::Weight(weight) | Value::Stored(weight)
            if weight.shape.len() == 1 && weight.shape.last().copied() == features =>
        {
            importer.parameter(weight, initial).map(Some)
        }
        _ => Ok(None),
    }
}

/// Splits a tensor into a factor and the tensor of which it is a multiple.
pub(super) fn scaled(importer: &Importer<'_>, id: TensorId) -> Option<(f64, TensorId)> {
    let node = importer.graph.nodes.iter().rev().find(|node| node.outputs.contains(&id))?;
    match &node.operator {
        Operator::Scale(scale) => Some((scale.0, node.inputs[0])),
        _ => None,
    }
}
