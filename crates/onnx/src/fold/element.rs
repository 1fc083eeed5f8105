//! Functions of single known numbers, and casts.

use thinwire_model::{Element, Error};

use crate::constant::{Constant, elements, is_float};
use crate::import::{Call, refuse};

/// Returns a function of one number.
pub(super) fn single(operator: &str) -> Option<fn(f64) -> f64> {
    Some(match operator {
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Sqrt" => f64::sqrt,
        "Reciprocal" => |x| 1.0 / x,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Exp" => f64::exp,
        "Cos" => f64::cos,
        "Sin" => f64::sin,
        "IsNaN" => |x| f64::from(u8::from(x.is_nan())),
        "Not" => |x| f64::from(u8::from(x == 0.0)),
        _ => return None,
    })
}

/// Functions of two numbers whose results are booleans.
pub(super) const COMPARISONS: [&str; 5] =
    ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"];

/// Returns a function of two numbers. `first` has the first operands; quotients of integers are integers.
pub(super) fn pair(operator: &str, first: &Constant) -> Option<fn(f64, f64) -> f64> {
    Some(match operator {
        "Add" => |x, y| x + y,
        "Sub" => |x, y| x - y,
        "Mul" => |x, y| x * y,
        "Div" if first.whole => |x, y| (x / y).trunc(),
        "Div" => |x, y| x / y,
        "Mod" => |x, y| x.rem_euclid(y),
        "Pow" => f64::powf,
        "Min" => f64::min,
        "Max" => f64::max,
        "Equal" => |x, y| f64::from(u8::from(x == y)),
        "Less" => |x, y| f64::from(u8::from(x < y)),
        "LessOrEqual" => |x, y| f64::from(u8::from(x <= y)),
        "Greater" => |x, y| f64::from(u8::from(x > y)),
        "GreaterOrEqual" => |x, y| f64::from(u8::from(x >= y)),
        "And" => |x, y| x * y,
        "Or" => f64::max,
        _ => return None,
    })
}

/// Converts numbers to another type.
pub(super) fn cast(call: &Call<'_>, constant: &Constant) -> Constant {
    let kind = i32::try_from(call.integer("to", 1)).ok();
    let kind = kind.and_then(|kind| onnx_rs::ast::DataType::try_from(kind).ok());
    let element = if kind.is_none_or(is_float) { Element::Float } else { Element::Index };
    let truth = kind == Some(onnx_rs::ast::DataType::Bool);
    let value = |value: &f64| match element {
        Element::Float => *value,
        Element::Index if truth => f64::from(u8::from(*value != 0.0)),
        Element::Index => value.trunc(),
    };
    let values = constant.values.iter().map(value).collect();
    Constant { shape: constant.shape.clone(), values, whole: element == Element::Index }
}

/// Applies a function to the values at every position of the shape to which all of them can be broadcast.
pub(super) fn broadcast(
    inputs: &[&Constant],
    function: impl Fn(&[f64]) -> f64,
) -> Result<Option<Constant>, Error> {
    let dimensions = inputs.iter().map(|input| input.shape.len()).max().unwrap_or(0);
    let length = |dim: usize| {
        let of = |input: &&Constant| {
            let missing = dimensions - input.shape.len();
            dim.checked_sub(missing).map_or(1, |dim| input.shape[dim])
        };
        let lengths: Vec<usize> = inputs.iter().map(of).collect();
        let most = lengths.iter().copied().max().unwrap_or(1);
        let fits = lengths.iter().all(|length| *length == 1 || *length == most);
        fits.then_some(most).ok_or_else(|| refuse(format!("lengths {lengths:?}")))
    };
    let shape: Vec<usize> = (0..dimensions).map(length).collect::<Result<_, _>>()?;
    let elements = elements(&shape)?;
    let there: Vec<&Constant> =
        inputs.iter().copied().filter(|input| !input.values.is_empty()).collect();
    let steps: Vec<Vec<usize>> = there.iter().map(|input| steps(input, dimensions)).collect();
    let mut places: Vec<_> = steps.iter().map(|steps| places(&shape, steps, 0)).collect();
    let mut found = vec![0.0; there.len()];
    let values = (0..elements).map(|_| {
        for ((found, input), places) in found.iter_mut().zip(&there).zip(&mut places) {
            *found = places.next().map_or(0.0, |place| input.values[place]);
        }
        function(&found)
    });
    let values = values.collect();
    drop(places);
    Ok(Some(Constant { shape, values, whole: inputs[0].whole }))
}

/// Returns the positions in memory of all elements of a shape in row-major order, starting at a position.
/// Neighbours along each dimension are `steps` apart.
pub(super) fn places(
    shape: &[usize],
    steps: &[usize],
    mut place: usize,
) -> impl Iterator<Item = usize> {
    let mut index = vec![0; shape.len()];
    (0..shape.iter().product::<usize>()).map(move |_| {
        let now = place;
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            place += steps[dim];
            if index[dim] < shape[dim] {
                break;
            }
            place -= steps[dim] * shape[dim];
            index[dim] = 0;
        }
        now
    })
}

/// Returns the stride of each dimension, counted from the last: 0 if a dimension has length 1 or is missing.
pub(super) fn steps(input: &Constant, dimensions: usize) -> Vec<usize> {
    let missing = dimensions - input.shape.len();
    let mut steps = vec![0; dimensions];
    let mut step = 1;
    for (dim, length) in input.shape.iter().enumerate().rev() {
        steps[missing + dim] = if *length == 1 { 0 } else { step };
        step *= length;
    }
    steps
}
