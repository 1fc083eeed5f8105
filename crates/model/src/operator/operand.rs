//! Checks of the operands and numbers of an operator.

use std::ops::RangeInclusive;

use crate::{Axes, Declaration, Dim, Error, Kind, Operand};

/// Finite values of single precision.
pub(super) const SINGLE: RangeInclusive<f64> = -(f32::MAX as f64)..=f32::MAX as f64;

/// Refuses a number that is out of range for an operator.
pub(super) fn check_number(
    name: &str,
    found: f64,
    expected: RangeInclusive<f64>,
) -> Result<(), Error> {
    if expected.contains(&found) {
        return Ok(());
    }
    let (least, most) = expected.into_inner();
    let message = format!("{name} is {found:?}, expected {least:?} to {most:?}");
    Err(Error::new(Kind::Operands, message))
}

/// Returns exactly N inputs.
pub(super) fn inputs<'a, const N: usize>(
    inputs: &[&'a [usize]],
) -> Result<[&'a [usize]; N], Error> {
    inputs.try_into().map_err(|_| {
        Error::new(Kind::Operands, format!("has {} inputs, expected {N}", inputs.len()))
    })
}

/// Returns a shape's last dimension and those before it.
pub(super) fn split_last<'a>(
    name: &str,
    shape: &'a [usize],
) -> Result<(usize, &'a [usize]), Error> {
    let none =
        || Error::new(Kind::Operands, format!("{name} has no dimension, expected one or more"));
    shape.split_last().map(|(last, leading)| (*last, leading)).ok_or_else(none)
}

/// Returns a shape of exactly N dimensions.
pub(super) fn dims<const N: usize>(name: &str, shape: &[usize]) -> Result<[usize; N], Error> {
    shape.try_into().map_err(|_| {
        let message = format!("{name} has {} dimensions {shape:?}, expected {N}", shape.len());
        Error::new(Kind::Operands, message)
    })
}

/// Divides `length` by `part`, without a remainder.
pub(super) fn quotient(name: &str, length: usize, part: usize) -> Result<usize, Error> {
    match length.checked_rem(part) {
        Some(0) => Ok(length / part),
        _ => {
            let message = format!("{name} is {length} long, expected a multiple of {part}");
            Err(Error::new(Kind::Operands, message))
        }
    }
}

/// Declares an operator on each element: its operands have one shape, every axis of which may be cut.
pub(super) fn elementwise(
    shape: &[usize],
    inputs: &[&'static str],
    output: &'static str,
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    let mut axes = Axes::default();
    let dims = axes.all(shape)?;
    Ok(declared(axes, [inputs, &[output]], flops_per_element, |_| dims.clone()))
}

/// Declares an operator on each row: its operands have one shape, whose last axis stays whole.
pub(super) fn rows(
    letter: char,
    shape: &[usize],
    inputs: &[&'static str],
    output: &'static str,
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    let (last, leading) = split_last(inputs[0], shape)?;
    let mut axes = Axes::default();
    let mut dims = axes.leading(leading)?;
    dims.push(axes.never(letter, last));
    Ok(declared(axes, [inputs, &[output]], flops_per_element, |_| dims.clone()))
}

/// Declares a norm: x, y and their gradients run over all of `dims`; statistics and parameters run over `one`
/// of them.
pub(super) fn norm(
    axes: Axes,
    dims: &[Dim],
    one: Dim,
    operands: [&[&'static str]; 2],
    flops_per_element: f64,
) -> Declaration {
    declared(axes, operands, flops_per_element, |name| match name {
        "x" | "y" | "dx" | "dy" => dims.to_vec(),
        _ => vec![one],
    })
}

/// Declares inputs and outputs by their names; `dims` returns the dimensions for a name.
fn declared(
    axes: Axes,
    operands: [&[&'static str]; 2],
    flops_per_element: f64,
    dims: impl Fn(&str) -> Vec<Dim>,
) -> Declaration {
    let flops = flops_per_element * axes.points();
    let operand = |name: &&'static str| Operand::new(name, dims(name));
    let [inputs, outputs] = operands.map(|names| names.iter().map(operand).collect::<Vec<_>>());
    axes.declare(inputs, outputs, flops)
}
