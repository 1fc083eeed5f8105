//! Parts of a dimension: splitting, joining, cutting out and looking up.

use std::ops::Range;

use thinwire_model::{Element, Embedding, Error, Pack, Reshape, TensorId, Unpack};

use crate::constant::Constant;
use crate::import::{Importer, WEIGHT, dimension, refuse};
use crate::value::Value;

/// Imports the splitting of a dimension.
pub(super) fn split(importer: &mut Importer<'_>) -> Result<Vec<Value>, Error> {
    let x = importer.tensor(0)?;
    let from = importer.graph.tensors[x].shape.clone();
    let dim = importer.call.axis(0, from.len())?;
    let equal = || {
        let part = from[dim].div_ceil(importer.call.outputs().max(1)) as i64;
        let rest = |at: usize| part.min(from[dim] as i64 - part * at as i64);
        (0..importer.call.outputs()).map(rest).collect()
    };
    let sections = importer.list("split", 1)?.unwrap_or_else(equal);
    let sections = lengths(&sections, from[dim])?;
    let unpack = Unpack { dim, pieces: 1, sections };
    let parts = importer.graph.apply(&*importer.call.name, unpack.into(), &[x])?;
    Ok(parts.into_iter().map(Value::Tensor).collect())
}

/// Returns the lengths of sections, which must cover a dimension.
fn lengths(sections: &[i64], whole: usize) -> Result<Vec<usize>, Error> {
    let length = |length: &i64| usize::try_from(*length).ok().filter(|n| (1..=whole).contains(n));
    let lengths: Option<Vec<usize>> = sections.iter().map(length).collect();
    let fits = |lengths: &Vec<usize>| {
        lengths.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n)) == Some(whole)
    };
    lengths.filter(fits).ok_or_else(|| {
        refuse(format!("sections {sections:?}, expected lengths that add up to {whole}"))
    })
}

/// Imports the joining of tensors along a dimension.
pub(super) fn concat(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let parts = (0..importer.call.inputs()).map(|index| importer.tensor(index));
    let parts: Vec<TensorId> = parts.collect::<Result<_, _>>()?;
    let shape = |id: &TensorId| importer.graph.tensors[*id].shape.clone();
    let first = parts.first().map(shape).unwrap_or_default();
    let dim = importer.call.axis(0, first.len())?;
    let section = |id: &TensorId| {
        let shape = shape(id);
        shape
            .get(dim)
            .copied()
            .ok_or_else(|| refuse(format!("an input of shape {shape:?}, expected dimension {dim}")))
    };
    let sections: Vec<usize> = parts.iter().map(section).collect::<Result<_, _>>()?;
    let pack = Pack { dim, pieces: 1, sections };
    importer.give(pack, &parts)
}

/// Adds the cutting out of a range of a dimension.
fn range(
    importer: &mut Importer<'_>,
    name: &str,
    x: TensorId,
    dim: usize,
    Range { start, end }: Range<usize>,
) -> Result<TensorId, Error> {
    let whole = importer.graph.tensors[x].shape[dim];
    if (start, end) == (0, whole) {
        return Ok(x);
    }
    let sections = [start, end - start, whole - end];
    let at = usize::from(start > 0);
    let sections: Vec<usize> = sections.into_iter().filter(|length| *length > 0).collect();
    let unpack = Unpack { dim, pieces: 1, sections };
    Ok(importer.graph.apply(name, unpack.into(), &[x])?[at])
}

/// Imports the cutting out of ranges of some dimensions.
pub(super) fn slice(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let mut x = importer.tensor(0)?;
    let from = importer.graph.tensors[x].shape.clone();
    for (dim, start, end, step) in ranges(importer, &from)? {
        if step != 1 || start >= end {
            return Err(refuse(format!(
                "{start} to {end} in steps of {step}, expected steps of 1"
            )));
        }
        x = range(importer, &importer.call.name, x, dim, start..end)?;
    }
    Ok(Value::Tensor(x))
}

/// Returns, for each axis that is sliced, the dimension, start, end and step.
pub(crate) fn ranges(
    importer: &Importer<'_>,
    from: &[usize],
) -> Result<Vec<(usize, usize, usize, i64)>, Error> {
    let starts = importer.list("starts", 1)?.unwrap_or_default();
    let ends = importer.list("ends", 2)?.unwrap_or_default();
    let all = || (0..starts.len() as i64).collect();
    let axes = importer.list("axes", 3)?.unwrap_or_else(all);
    let steps = importer.list("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let counts = [starts.len(), ends.len(), axes.len(), steps.len()];
    if starts.is_empty() || counts != [starts.len(); 4] {
        let message = format!(
            "{counts:?} starts, ends, axes and steps, expected equal numbers of each, at least 1"
        );
        return Err(refuse(message));
    }
    let range = |(((start, end), axis), step): (((i64, i64), i64), i64)| {
        let dim = dimension(axis, from.len())?;
        let length = from[dim] as i64;
        let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
        let clamped = |at: i64| place(at).clamp(0, length) as usize;
        Ok((dim, clamped(start), clamped(end), step))
    };
    starts.into_iter().zip(ends).zip(axes).zip(steps).map(range).collect()
}

/// Imports the lookup of rows of a table, or of one index of a dimension.
pub(super) fn gather(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let from = importer.shape(importer.value(0)?);
    let dim = importer.call.axis(0, from.len())?;
    let at = importer.constant(1).ok().filter(|at| at.shape.is_empty());
    let single = at.and_then(|at| at.single());
    if let Some(at) = single {
        let length = from[dim] as i64;
        let at = if at < 0.0 { at as i64 + length } else { at as i64 };
        if at < 0 || at >= length {
            return Err(refuse(format!("index {at} is out of range, expected below {length}")));
        }
        let x = importer.tensor(0)?;
        let (name, at) = (format!("{}.part", importer.call.name), at as usize);
        let part = range(importer, &name, x, dim, at..at + 1)?;
        let mut shape = from;
        shape.remove(dim);
        return importer.give(Reshape { shape }, &[part]);
    }
    if let (0, Ok(rows)) = (dim, importer.constant(1))
        && let Some(value) = known_rows(importer, &from, &rows)?
    {
        return Ok(value);
    }
    // A table that is always read at the same places need not be one that is trained.
    let table = match importer.is_fixed(1) {
        true => importer.tensor(0)?,
        false => importer.learned(0, WEIGHT)?,
    };
    let ids = importer.tensor(1)?;
    if dim != 0 || from.len() != 2 || importer.graph.tensors[ids].element != Element::Index {
        return Err(refuse(format!(
            "rows along axis {dim} of shape {from:?}, expected axis 0 of a matrix"
        )));
    }
    importer.give(Embedding::plain(), &[table, ids])
}

/// Returns rows of a table at known positions: one row repeatedly, or consecutive rows. Rows counted from 0
/// are excluded, since they are positions.
fn known_rows(
    importer: &mut Importer<'_>,
    table: &[usize],
    rows: &Constant,
) -> Result<Option<Value>, Error> {
    let [known, features] = *table else { return Ok(None) };
    let Some(first) = rows.values.first().copied() else { return Ok(None) };
    let rising = rows.values.iter().zip(0..).all(|(row, at)| *row == first + f64::from(at));
    let count = match rows.uniform() {
        _ if rows.is_counted() => return Ok(None),
        Some(_) => 1,
        None if rising => rows.values.len(),
        None => return Ok(None),
    };
    if first < 0.0 || first as usize + count > known {
        return Err(refuse(format!(
            "rows {first} to {} of a table of {known} rows",
            first + count as f64 - 1.0
        )));
    }
    let (x, first) = (importer.tensor(0)?, first as usize);
    let name = format!("{}.part", importer.call.name);
    let part = range(importer, &name, x, 0, first..first + count)?;
    let shape = [&rows.shape[..], &[features]].concat();
    let value = match rows.values.len() == count {
        true => importer.node(Reshape { shape }, &[part]),
        false => importer.expand(&importer.call.name, part, shape),
    };
    value.map(|value| Some(Value::Tensor(value)))
}
