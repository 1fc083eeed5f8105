//! Views: reshapes, transposes and expansions.

use thinwire_model::{Error, Reshape, Transpose};

use crate::half::{Half, Stage};
use crate::import::{Call, Importer, dimension, refuse};
use crate::value::Value;

/// Imports Reshape, Flatten, Squeeze and Unsqueeze.
pub(super) fn reshape(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let value = importer.value(0)?.clone();
    let from = importer.shape(&value);
    let shape = match importer.call.operator {
        "Reshape" => asked(importer, &from)?,
        "Flatten" => flat(importer.call, &from)?,
        "Squeeze" => squeezed(importer, &from)?,
        _ => unsqueezed(importer, &from)?,
    };
    if shape == from {
        return Ok(value);
    }
    if let Value::Half(half) = &value
        && half.stage == Stage::Causal
        && from.last_chunk::<2>() == shape.last_chunk::<2>()
    {
        let x = importer.node(Reshape { shape }, &[half.x])?;
        return Ok(Value::Half(Half { x, ..half.clone() }));
    }
    let x = importer.tensor(0)?;
    importer.give(Reshape { shape }, &[x])
}

/// Returns the shape that a reshape asks for, in which 0 keeps a dimension and -1 stands for the
/// remaining elements.
pub(crate) fn asked(importer: &Importer<'_>, from: &[usize]) -> Result<Vec<usize>, Error> {
    let asked = importer.constant(1)?.integers();
    let refused = || refuse(format!("shape {from:?} cannot become {asked:?}"));
    let elements: usize = from.iter().product();
    if asked.iter().filter(|length| **length == -1).count() > 1 {
        return Err(refused());
    }
    let length = |(at, length): (usize, &i64)| match length {
        -1 => Ok(1),
        0 if importer.call.integer("allowzero", 0) == 0 => {
            from.get(at).copied().ok_or_else(refused)
        }
        length => usize::try_from(*length).map_err(|_| refused()),
    };
    let mut shape: Vec<usize> = asked.iter().enumerate().map(length).collect::<Result<_, _>>()?;
    let known = shape.iter().try_fold(1_usize, |n, length| n.checked_mul(*length));
    let known = known.filter(|known| *known > 0).ok_or_else(refused)?;
    if let Some(open) = asked.iter().position(|length| *length == -1) {
        shape[open] = elements / known;
    }
    match shape.iter().product::<usize>() == elements {
        true => Ok(shape),
        false => Err(refused()),
    }
}

/// Returns a shape of two dimensions: the first merges all dimensions before an axis, the second all
/// others.
pub(crate) fn flat(call: &Call<'_>, from: &[usize]) -> Result<Vec<usize>, Error> {
    let axis = call.integer("axis", 1);
    let axis = match usize::try_from(axis) {
        Ok(axis) if axis == from.len() => axis,
        _ => dimension(axis, from.len())?,
    };
    Ok(vec![from[..axis].iter().product(), from[axis..].iter().product()])
}

/// Returns the axes of an attribute or, since version 13, of the second input.
pub(super) fn axes(
    importer: &Importer<'_>,
    dimensions: usize,
) -> Result<Option<Vec<usize>>, Error> {
    let Some(axes) = importer.list("axes", 1)? else { return Ok(None) };
    let axes = axes.into_iter().map(|axis| dimension(axis, dimensions));
    axes.collect::<Result<_, _>>().map(Some)
}

pub(crate) fn squeezed(importer: &Importer<'_>, from: &[usize]) -> Result<Vec<usize>, Error> {
    let axes = axes(importer, from.len())?;
    let goes = |at: usize| match &axes {
        Some(axes) => axes.contains(&at),
        None => from[at] == 1,
    };
    match (0..from.len()).find(|at| goes(*at) && from[*at] != 1) {
        Some(at) => {
            Err(refuse(format!("dimension {at} of shape {from:?} is squeezed, expected 1")))
        }
        None => Ok((0..from.len()).filter(|at| !goes(*at)).map(|at| from[at]).collect()),
    }
}

pub(crate) fn unsqueezed(importer: &Importer<'_>, from: &[usize]) -> Result<Vec<usize>, Error> {
    let given = match importer.call.integers("axes") {
        Some(axes) => axes.len(),
        None => importer.constant(1)?.values.len(),
    };
    let dimensions = from.len() + given;
    let axes = axes(importer, dimensions)?.unwrap_or_default();
    let mut rest = from.iter();
    let length = |at: usize| match axes.contains(&at) {
        true => Some(1),
        false => rest.next().copied(),
    };
    let shape: Option<Vec<usize>> = (0..dimensions).map(length).collect();
    shape.ok_or_else(|| refuse(format!("axes {axes:?} of {dimensions} dimensions")))
}

/// Returns the order that a transpose asks for, which has each dimension once.
pub(crate) fn order(call: &Call<'_>, dimensions: usize) -> Result<Vec<usize>, Error> {
    let Some(asked) = call.integers("perm") else { return Ok((0..dimensions).rev().collect()) };
    let order = asked.iter().map(|axis| usize::try_from(*axis).unwrap_or(usize::MAX));
    let order: Vec<usize> = order.collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    match sorted.into_iter().eq(0..dimensions) {
        true => Ok(order),
        false => Err(refuse(format!("perm {asked:?}, expected each of {dimensions} once"))),
    }
}

/// Imports the reordering of dimensions; a weight is marked as transposed.
pub(super) fn transpose(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let shape = importer.shape(importer.value(0)?);
    let order = order(importer.call, shape.len())?;
    if let (Some(weight), [1, 0]) = (importer.weight(0), &order[..]) {
        return Ok(match importer.value(0)? {
            Value::Stored(_) => Value::Stored(weight.turned()),
            _ => Value::Weight(weight.turned()),
        });
    }
    let letter = |at: usize| char::from(b'a' + at as u8);
    let input: String = (0..shape.len().min(26)).map(letter).collect();
    let output: String = order.iter().map(|at| letter(*at)).collect();
    let x = importer.tensor(0)?;
    if input == output {
        return Ok(Value::Tensor(x));
    }
    importer.give(Transpose::new(input, output), &[x])
}

/// Imports repeating values along further dimensions.
pub(super) fn expand(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let asked = importer.constant(1)?.integers();
    let from = importer.shape(importer.value(0)?);
    let mut shape: Vec<usize> = Vec::new();
    let missing = asked.len().max(from.len());
    for at in 0..missing {
        let had = (at + from.len()).checked_sub(missing).map_or(1, |at| from[at]);
        let asked = (at + asked.len()).checked_sub(missing).map_or(1, |at| asked[at]);
        let asked = usize::try_from(asked).ok().filter(|length| *length < 1 << 31);
        shape.push(asked.ok_or_else(|| refuse("a length below 0"))?.max(had));
    }
    let x = importer.tensor(0)?;
    importer.expand(&importer.call.name, x, shape).map(Value::Tensor)
}
