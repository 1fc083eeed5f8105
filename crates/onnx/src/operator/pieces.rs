//! Parts of a dimension: split, put together, cut out and looked up.

use thinwire_model::{Element, Embedding, Error, Pack, TensorId, Unpack};

use super::shape;
use crate::constant::Constant;
use crate::import::{Call, Importer, WEIGHT};
use crate::value::Value;

/// A dimension taken apart.
pub(super) fn split(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    let x = importer.tensor(call, 0)?;
    let from = importer.graph.tensors[x].shape.clone();
    let dim = call.dimension(call.integer("axis", 0), from.len())?;
    let equal = || {
        let part = from[dim].div_ceil(call.outputs().max(1)) as i64;
        let rest = |at: usize| part.min(from[dim] as i64 - part * at as i64);
        (0..call.outputs()).map(rest).collect()
    };
    let sections = importer.list(call, "split", 1)?.unwrap_or_else(equal);
    let sections = lengths(call, &sections, from[dim])?;
    let unpack = Unpack { dim, pieces: 1, sections };
    let parts = importer.graph.apply(&*call.name, unpack.into(), &[x])?;
    Ok(parts.into_iter().map(Value::Tensor).collect())
}

/// Sections that are all of a dimension.
fn lengths(call: &Call<'_>, sections: &[i64], whole: usize) -> Result<Vec<usize>, Error> {
    let length = |length: &i64| usize::try_from(*length).ok().filter(|n| (1..=whole).contains(n));
    let lengths: Option<Vec<usize>> = sections.iter().map(length).collect();
    let fits = |lengths: &Vec<usize>| {
        lengths.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n)) == Some(whole)
    };
    lengths.filter(fits).ok_or_else(|| {
        call.refuse(format!("sections {sections:?}, expected lengths that are {whole} together"))
    })
}

/// Tensors as one dimension.
pub(super) fn concat(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let parts = (0..call.inputs()).map(|index| importer.tensor(call, index));
    let parts: Vec<TensorId> = parts.collect::<Result<_, _>>()?;
    let shape = |id: &TensorId| importer.graph.tensors[*id].shape.clone();
    let first = parts.first().map(shape).unwrap_or_default();
    let dim = call.dimension(call.integer("axis", 0), first.len())?;
    let section = |id: &TensorId| {
        let shape = shape(id);
        shape.get(dim).copied().ok_or_else(|| call.refuse(format!("an input of shape {shape:?}")))
    };
    let sections: Vec<usize> = parts.iter().map(section).collect::<Result<_, _>>()?;
    let pack = Pack { dim, pieces: 1, sections };
    importer.give(call, pack, &parts)
}

/// A range of a dimension.
fn range(
    importer: &mut Importer<'_>,
    name: &str,
    x: TensorId,
    (dim, start, end): (usize, usize, usize),
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

/// Ranges of some dimensions.
pub(super) fn slice(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let mut x = importer.tensor(call, 0)?;
    let from = importer.graph.tensors[x].shape.clone();
    for (dim, start, end, step) in ranges(importer, call, &from)? {
        if step != 1 || start >= end {
            let message = format!("{start} to {end} in steps of {step}, expected steps of 1");
            return Err(call.refuse(message));
        }
        x = range(importer, &call.name, x, (dim, start, end))?;
    }
    Ok(Value::Tensor(x))
}

/// For each axis that is sliced: the dimension, start, end and step.
pub(crate) fn ranges(
    importer: &Importer<'_>,
    call: &Call<'_>,
    from: &[usize],
) -> Result<Vec<(usize, usize, usize, i64)>, Error> {
    let starts = importer.list(call, "starts", 1)?.unwrap_or_default();
    let ends = importer.list(call, "ends", 2)?.unwrap_or_default();
    let all = || (0..starts.len() as i64).collect();
    let axes = importer.list(call, "axes", 3)?.unwrap_or_else(all);
    let steps = importer.list(call, "steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let counts = [starts.len(), ends.len(), axes.len(), steps.len()];
    if starts.is_empty() || counts != [starts.len(); 4] {
        let message =
            format!("{counts:?} starts, ends, axes and steps, expected as many, and some");
        return Err(call.refuse(message));
    }
    let range = |(((start, end), axis), step): (((i64, i64), i64), i64)| {
        let dim = call.dimension(axis, from.len())?;
        let length = from[dim] as i64;
        let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
        let clamped = |at: i64| place(at).clamp(0, length) as usize;
        Ok((dim, clamped(start), clamped(end), step))
    };
    starts.into_iter().zip(ends).zip(axes).zip(steps).map(range).collect()
}

/// Rows of a table, or one place of a dimension.
pub(super) fn gather(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let from = importer.shape(importer.value(call, 0)?);
    let dim = call.dimension(call.integer("axis", 0), from.len())?;
    let single = importer
        .constant(call, 1)
        .ok()
        .and_then(|constant| constant.single().filter(|_| constant.shape.is_empty()));
    if let Some(at) = single {
        let length = from[dim] as i64;
        let at = if at < 0.0 { at as i64 + length } else { at as i64 };
        if at < 0 || at >= length {
            return Err(call.refuse(format!("place {at} of a dimension of {length}")));
        }
        let x = importer.tensor(call, 0)?;
        let part = range(
            importer,
            &format!("{}.part", call.name),
            x,
            (dim, at as usize, at as usize + 1),
        )?;
        let mut left = from;
        left.remove(dim);
        return shape::to(importer, &call.name, part, left).map(Value::Tensor);
    }
    if let (0, Ok(rows)) = (dim, importer.constant(call, 1))
        && let Some(value) = known_rows(importer, call, &from, &rows)?
    {
        return Ok(value);
    }
    // A table that is always read at the same places need not be one that is trained.
    let table = match importer.is_fixed(call, 1) {
        true => importer.tensor(call, 0)?,
        false => importer.learned(call, 0, WEIGHT)?,
    };
    let ids = importer.tensor(call, 1)?;
    if dim != 0 || from.len() != 2 || importer.graph.tensors[ids].element != Element::Index {
        let message = format!("rows along axis {dim} of shape {from:?}, expected a table");
        return Err(call.refuse(message));
    }
    importer.give(call, Embedding, &[table, ids])
}

/// Rows of a table at known places: one row again and again, or rows one after the other, but for
/// those counted from 0, which are positions.
fn known_rows(
    importer: &mut Importer<'_>,
    call: &Call<'_>,
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
        let message = format!("rows {first} to {} of {known}", first + count as f64 - 1.0);
        return Err(call.refuse(message));
    }
    let (x, first) = (importer.tensor(call, 0)?, first as usize);
    let part = range(importer, &format!("{}.part", call.name), x, (0, first, first + count))?;
    let shape = [&rows.shape[..], &[features]].concat();
    let value = match rows.values.len() == count {
        true => shape::to(importer, &call.name, part, shape)?,
        false => importer.expand(&call.name, part, shape)?,
    };
    Ok(Some(Value::Tensor(value)))
}
