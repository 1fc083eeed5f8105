//! Folding: what can be worked out from known numbers and shapes.

use thinwire_model::{Element, Error};

use crate::constant::{Constant, ELEMENTS_MAX, is_float};
use crate::import::{Call, Importer};
use crate::operator;

/// The numbers that a node gives, if all that it reads is known.
pub(crate) fn fold(importer: &Importer<'_>, call: &Call<'_>) -> Result<Option<Constant>, Error> {
    match call.operator {
        "Constant" => return constant(call).map(Some),
        "Shape" => return shape(importer, call).map(Some),
        "Size" => {
            let elements: usize = importer.shape(importer.value(call, 0)?).iter().product();
            return Ok(Some(Constant::scalar(elements as f64, true)));
        }
        _ => {}
    }
    let read = (0..call.inputs()).filter(|index| call.has(*index));
    let known = |index: usize| importer.constant(call, index).ok();
    let Some(inputs) = read.map(known).collect::<Option<Vec<Constant>>>() else { return Ok(None) };
    if inputs.is_empty() {
        return Ok(None);
    }
    let folded = known_numbers(importer, call, &inputs)?;
    match folded.as_ref().map(|constant| constant.values.len()) {
        Some(count) if count > ELEMENTS_MAX => Err(large(call)),
        _ => Ok(folded),
    }
}

fn large(call: &Call<'_>) -> Error {
    call.refuse(format!("more than {ELEMENTS_MAX} known numbers"))
}

fn known_numbers(
    importer: &Importer<'_>,
    call: &Call<'_>,
    inputs: &[Constant],
) -> Result<Option<Constant>, Error> {
    let first = &inputs[0];
    let reshaped = |shape: Vec<usize>| Some(Constant { shape, ..first.clone() });
    Ok(match call.operator {
        "Identity" | "Dropout" => Some(first.clone()),
        "Cast" => Some(cast(call, first)),
        "Reshape" => reshaped(operator::asked(importer, call, &first.shape)?),
        "Squeeze" => reshaped(operator::squeezed(importer, call, &first.shape)?),
        "Unsqueeze" => reshaped(operator::unsqueezed(importer, call, &first.shape)?),
        "Gather" => gather(call, first, &inputs[1..]),
        "Concat" => concat(inputs),
        "Slice" => slice(importer, call, first)?,
        "Range" => range(call, inputs)?,
        "ConstantOfShape" => filled(call, first)?,
        "Trilu" => Some(triangle(call, inputs)),
        "Expand" => {
            let [_, shape] = inputs else { return Ok(None) };
            let ones = Constant { shape: lengths(shape), values: Vec::new(), whole: first.whole };
            broadcast(call, &[first, &ones], |values| values[0])?
        }
        "Where" => {
            let [condition, yes, no] = inputs else { return Ok(None) };
            let chosen = |v: &[f64]| if v[0] != 0.0 { v[1] } else { v[2] };
            let found = broadcast(call, &[condition, yes, no], chosen)?;
            found.map(|found| Constant { whole: yes.whole, ..found })
        }
        _ => match (inputs, single(call.operator), pair(call.operator, first.whole)) {
            ([x], Some(function), _) => Some(Constant {
                values: x.values.iter().map(|v| function(*v)).collect(),
                ..x.clone()
            }),
            ([x, y], _, Some(function)) => broadcast(call, &[x, y], |v| function(v[0], v[1]))?,
            _ => None,
        },
    })
}

/// Functions of one number.
fn single(operator: &str) -> Option<fn(f64) -> f64> {
    Some(match operator {
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Sqrt" => f64::sqrt,
        "Reciprocal" => |x| 1.0 / x,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Exp" => f64::exp,
        "Not" => |x| f64::from(u8::from(x == 0.0)),
        _ => return None,
    })
}

/// Functions of two numbers; whole ones are divided to whole ones.
fn pair(operator: &str, whole: bool) -> Option<fn(f64, f64) -> f64> {
    Some(match operator {
        "Add" => |x, y| x + y,
        "Sub" => |x, y| x - y,
        "Mul" => |x, y| x * y,
        "Div" if whole => |x, y| (x / y).trunc(),
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

fn constant(call: &Call<'_>) -> Result<Constant, Error> {
    let list = |values: Vec<f64>, whole: bool, single: bool| Constant {
        shape: if single { Vec::new() } else { vec![values.len()] },
        values,
        whole,
    };
    if let Some(tensor) = call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        return Constant::read(tensor);
    }
    let found = ["value_float", "value_int", "value_floats", "value_ints"]
        .into_iter()
        .find_map(|name| Some((name, call.attribute(name)?)));
    match found {
        Some(("value_float", attribute)) => Ok(list(vec![f64::from(attribute.f)], false, true)),
        Some(("value_int", attribute)) => Ok(list(vec![attribute.i as f64], true, true)),
        Some(("value_floats", attribute)) => {
            Ok(list(attribute.floats.iter().map(|v| f64::from(*v)).collect(), false, false))
        }
        Some((_, attribute)) => {
            Ok(list(attribute.ints.iter().map(|v| *v as f64).collect(), true, false))
        }
        None => Err(call.refuse("a constant without a value of numbers")),
    }
}

fn shape(importer: &Importer<'_>, call: &Call<'_>) -> Result<Constant, Error> {
    let shape = importer.shape(importer.value(call, 0)?);
    let length = shape.len() as i64;
    let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
    let (start, end) = (place(call.integer("start", 0)), place(call.integer("end", length)));
    Ok(Constant::list(shape.get(start..end).unwrap_or(&[]).iter().copied()))
}

fn cast(call: &Call<'_>, constant: &Constant) -> Constant {
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

fn lengths(constant: &Constant) -> Vec<usize> {
    constant.values.iter().map(|value| value.max(0.0) as usize).collect()
}

/// A function of the values at every place of the shape that all of them fit.
fn broadcast(
    call: &Call<'_>,
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
        fits.then_some(most).ok_or_else(|| call.refuse(format!("lengths {lengths:?}")))
    };
    let shape: Vec<usize> = (0..dimensions).map(length).collect::<Result<_, _>>()?;
    let elements = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    let elements = elements.filter(|n| *n <= ELEMENTS_MAX).ok_or_else(|| large(call))?;
    let mut index = vec![0; dimensions];
    let mut values = Vec::with_capacity(elements);
    for place in 0..elements {
        let mut rest = place;
        for (i, length) in index.iter_mut().zip(&shape).rev() {
            *i = rest % length;
            rest /= length;
        }
        let there = inputs.iter().filter(|input| !input.values.is_empty());
        values.push(function(&there.map(|input| input.at(&index)).collect::<Vec<_>>()));
    }
    Ok(Some(Constant { shape, values, whole: inputs[0].whole }))
}

/// Places of the first dimension.
fn gather(call: &Call<'_>, from: &Constant, rest: &[Constant]) -> Option<Constant> {
    let [indices] = rest else { return None };
    let (length, inner) = from.shape.split_first()?;
    if call.integer("axis", 0) != 0 {
        return None;
    }
    let width: usize = inner.iter().product();
    let mut values = Vec::new();
    for index in indices.integers() {
        let index = if index < 0 { index.checked_add(*length as i64)? } else { index };
        let start = usize::try_from(index).ok()?.checked_mul(width)?;
        values.extend(from.values.get(start..start.checked_add(width)?)?);
        if values.len() > ELEMENTS_MAX {
            return None;
        }
    }
    Some(Constant { shape: [&indices.shape[..], inner].concat(), values, whole: from.whole })
}

/// Lists as one.
fn concat(inputs: &[Constant]) -> Option<Constant> {
    let lists = inputs.iter().all(|input| input.shape.len() == 1);
    let values: Vec<f64> = inputs.iter().flat_map(|input| input.values.clone()).collect();
    lists.then(|| Constant { shape: vec![values.len()], values, whole: inputs[0].whole })
}

fn slice(
    importer: &Importer<'_>,
    call: &Call<'_>,
    from: &Constant,
) -> Result<Option<Constant>, Error> {
    let mut parts: Vec<(usize, usize)> = from.shape.iter().map(|length| (0, *length)).collect();
    for (dim, start, end, step) in operator::ranges(importer, call, &from.shape)? {
        if step != 1 {
            return Ok(None);
        }
        parts[dim] = (start, end.max(start));
    }
    let shape: Vec<usize> = parts.iter().map(|(start, end)| end - start).collect();
    let elements: usize = shape.iter().product();
    let value = |place: usize| {
        let mut rest = place;
        let mut index = vec![0; shape.len()];
        for (at, length) in shape.iter().enumerate().rev() {
            index[at] = parts[at].0 + rest % length;
            rest /= length;
        }
        from.at(&index)
    };
    let values = (0..elements).map(value).collect();
    Ok(Some(Constant { shape, values, whole: from.whole }))
}

fn range(call: &Call<'_>, inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let numbers: Option<Vec<f64>> = inputs.iter().map(Constant::single).collect();
    let Some([start, limit, step]) = numbers.as_deref() else { return Ok(None) };
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > ELEMENTS_MAX as f64 {
        return Err(large(call));
    }
    let values: Vec<f64> = (0..count as usize).map(|at| start + at as f64 * step).collect();
    Ok(Some(Constant { shape: vec![values.len()], values, whole: inputs[0].whole }))
}

fn filled(call: &Call<'_>, shape: &Constant) -> Result<Option<Constant>, Error> {
    let value = match call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        Some(tensor) => Constant::read(tensor)?,
        None => Constant::scalar(0.0, false),
    };
    let shape = lengths(shape);
    let elements = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    let elements = elements.filter(|n| *n <= ELEMENTS_MAX).ok_or_else(|| large(call))?;
    let values = vec![value.single().unwrap_or(0.0); elements];
    Ok(Some(Constant { shape, values, whole: value.whole }))
}

/// The lower or upper triangle of the last two dimensions; zero elsewhere.
fn triangle(call: &Call<'_>, inputs: &[Constant]) -> Constant {
    let from = &inputs[0];
    let upper = call.integer("upper", 1) != 0;
    let shift = inputs.get(1).and_then(Constant::single).unwrap_or(0.0) as i64;
    let [.., rows, columns] = from.shape[..] else { return from.clone() };
    let value = |(place, value): (usize, &f64)| {
        let (row, column) = ((place / columns % rows) as i64, (place % columns) as i64);
        let stays = match upper {
            true => column - row >= shift,
            false => column - row <= shift,
        };
        if stays { *value } else { 0.0 }
    };
    Constant { values: from.values.iter().enumerate().map(value).collect(), ..from.clone() }
}
