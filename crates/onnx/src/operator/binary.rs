//! Functions of two tensors, applied to corresponding elements.

use thinwire_model::{Arithmetic, Error, Fill, Initial, Linear, Operator, Scale, TensorId};

use super::{formula, mask};
use crate::constant::FAR;
use crate::import::{Importer, unsupported};
use crate::value::{Value, Weight};

/// Imports a formula, a bias, a multiple, a mask, or arithmetic.
pub(super) fn visit(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let [left, right] = [importer.value(0)?.clone(), importer.value(1)?.clone()];
    let turns = matches!(importer.call.operator, "Add" | "Mul" | "Max");
    if let Some(value) = formula::visit(importer, &left, &right)? {
        return Ok(value);
    }
    if turns && let Some(value) = formula::visit(importer, &right, &left)? {
        return Ok(value);
    }
    let [left, right] = [importer.known(left)?, importer.known(right)?];
    let orders = [(0, &left, &right), (1, &right, &left)];
    for (first, one, other) in orders.into_iter().take(if turns { 2 } else { 1 }) {
        if let Some(value) = special(importer, first, one, other)? {
            return Ok(value);
        }
    }
    let operator = match importer.call.operator {
        "Add" => Arithmetic::Add,
        "Sub" => Arithmetic::Subtract,
        "Mul" => Arithmetic::Multiply,
        "Div" => Arithmetic::Divide,
        other => return Err(unsupported(other)),
    };
    let operands = [importer.tensor(0)?, importer.tensor(1)?];
    arithmetic(importer, operator, operands).map(Value::Tensor)
}

/// Returns the value of an operation that is not simple arithmetic of two tensors: a bias, a mask, or a
/// multiple.
fn special(
    importer: &mut Importer<'_>,
    index: usize,
    one: &Value,
    other: &Value,
) -> Result<Option<Value>, Error> {
    match (importer.call.operator, one, other) {
        ("Add", Value::Tensor(x), Value::Weight(bias)) if importer.alone(index) => {
            Ok(biased(importer, *x, bias)?.map(Value::Tensor))
        }
        ("Add", Value::Tensor(x), Value::Constant(constant)) if mask::adds(constant).is_some() => {
            let seen = mask::adds(constant);
            Ok(seen.and_then(|seen| mask::scores(importer, *x, constant, seen)))
        }
        ("Max", Value::Tensor(x), Value::Constant(least)) => {
            let least = least.single().filter(|value| *value <= FAR);
            Ok(least.map(|_| Value::Tensor(*x)))
        }
        (operator, _, Value::Constant(constant)) if !matches!(one, Value::Constant(_)) => {
            let Some(number) = constant.single() else { return Ok(None) };
            let factor = match (operator, number) {
                ("Add" | "Sub", 0.0) => 1.0,
                ("Pow", 1.0) => 1.0,
                ("Mul", factor) => factor,
                ("Div", number) if number != 0.0 => 1.0 / number,
                _ => return Ok(None),
            };
            let id = importer.tensor(index)?;
            match factor == 1.0 {
                true => Ok(Some(Value::Tensor(id))),
                false => importer.give(Scale(factor), &[id]).map(Some),
            }
        }
        _ => Ok(None),
    }
}

/// Returns a linear layer with this bias, which it did not have before.
fn biased(
    importer: &mut Importer<'_>,
    x: TensorId,
    bias: &Weight,
) -> Result<Option<TensorId>, Error> {
    let features = importer.graph.tensors[x].shape.last();
    if bias.shape.len() != 1 || bias.shape.last() != features {
        return Ok(None);
    }
    let node = importer.graph.nodes.iter().rposition(|node| node.outputs.contains(&x));
    let Some(node) = node else { return Ok(None) };
    let Operator::Linear(linear @ Linear { bias: false, .. }) = importer.graph.nodes[node].operator
    else {
        return Ok(None);
    };
    let bias = importer.parameter(bias, Initial::Zeros)?;
    let node = &mut importer.graph.nodes[node];
    node.operator = Linear { bias: true, ..linear }.into();
    node.inputs.push(bias);
    Ok(Some(x))
}

/// Adds arithmetic with the larger operand first.
fn arithmetic(
    importer: &mut Importer<'_>,
    operator: Arithmetic,
    [x, y]: [TensorId; 2],
) -> Result<TensorId, Error> {
    let shape = |id: TensorId| &importer.graph.tensors[id].shape;
    let smaller = |a: &[usize], b: &[usize]| {
        a.len() < b.len() || (a.len() == b.len() && a.iter().zip(b).any(|(a, b)| a < b))
    };
    if !smaller(shape(x), shape(y)) {
        return importer.node(operator, &[x, y]);
    }
    let whole = shape(y).clone();
    let name = format!("{}.whole", importer.call.name);
    match operator {
        Arithmetic::Add | Arithmetic::Multiply => importer.node(operator, &[y, x]),
        Arithmetic::Subtract => {
            let minus = importer.apply(&name, Scale(-1.0), &[y])?;
            importer.node(Arithmetic::Add, &[minus, x])
        }
        Arithmetic::Divide => {
            let filled = importer.graph.nodes.iter().rev().find(|node| node.outputs[..] == [x]);
            let whole = match filled.map(|node| &node.operator) {
                Some(Operator::Fill(fill)) => {
                    let fill = Fill { shape: whole, value: fill.value };
                    importer.apply(&name, fill, &[])?
                }
                _ => importer.expand(&name, x, whole)?,
            };
            importer.node(operator, &[whole, y])
        }
    }
}
