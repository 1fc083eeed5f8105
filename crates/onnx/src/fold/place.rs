//! Operators that move known numbers: looking up, joining, cutting out, transposing and summing.

use thinwire_model::{Array, Error};

use super::element::{places, steps};
use crate::constant::{Constant, ELEMENTS_MAX, elements};
use crate::import::{Call, Importer, dimension};
use crate::operator;

/// Returns a tensor whose value at every index of a shape is a function of the index; integers if those of
/// `from` are. Returns `None` if the function returns `None` for any index.
fn build(
    shape: Vec<usize>,
    from: &Constant,
    value: impl Fn(&[usize]) -> Option<f64>,
) -> Result<Option<Constant>, Error> {
    let mut values = Some(Vec::with_capacity(elements(&shape)?));
    Array::each_index(&shape, |index| {
        values = values.take().and_then(|mut values| {
            values.push(value(index)?);
            Some(values)
        });
    });
    Ok(values.map(|values| Constant { shape, values, whole: from.whole }))
}

/// Returns the position of an index, which counts from the end if it is negative.
fn place(index: f64, length: usize) -> Option<usize> {
    let index = if index < 0.0 { index + length as f64 } else { index };
    (index >= 0.0 && index < length as f64).then_some(index as usize)
}

/// Looks up parts of a dimension by their positions.
pub(super) fn gather(
    call: &Call<'_>,
    from: &Constant,
    rest: &[Constant],
) -> Result<Option<Constant>, Error> {
    let [indices] = rest else { return Ok(None) };
    let dim = call.axis(0, from.shape.len())?;
    let (length, within) = (from.shape[dim], from.shape[dim + 1..].iter().product::<usize>());
    let places = indices.values.iter().map(|index| place(*index, length));
    let Some(places) = places.collect::<Option<Vec<usize>>>() else { return Ok(None) };
    let before: usize = from.shape[..dim].iter().product();
    let starts = (0..before).flat_map(|at| places.iter().map(move |place| at * length + place));
    let shape = [&from.shape[..dim], &indices.shape, &from.shape[dim + 1..]].concat();
    pieces(from, shape, starts.map(|start| start * within), within)
}

/// Joins pieces of equal length, given the start of each.
fn pieces(
    from: &Constant,
    shape: Vec<usize>,
    starts: impl Iterator<Item = usize>,
    length: usize,
) -> Result<Option<Constant>, Error> {
    let mut values = Vec::with_capacity(elements(&shape)?);
    starts.for_each(|start| values.extend_from_slice(&from.values[start..start + length]));
    Ok(Some(Constant { shape, values, whole: from.whole }))
}

/// Returns numbers that are `steps` apart along each dimension of a shape, starting at `first`.
fn strided(from: &Constant, shape: Vec<usize>, steps: &[usize], first: usize) -> Constant {
    let values = places(&shape, steps, first).map(|place| from.values[place]).collect();
    Constant { shape, values, whole: from.whole }
}

/// Looks up, for every index, the number at its own position, except in one dimension, where `rest` has the
/// position.
pub(super) fn gather_elements(
    call: &Call<'_>,
    from: &Constant,
    rest: &[Constant],
) -> Result<Option<Constant>, Error> {
    let [indices] = rest else { return Ok(None) };
    let dim = call.axis(0, from.shape.len())?;
    if indices.shape.len() != from.shape.len() {
        return Ok(None);
    }
    build(indices.shape.clone(), from, |at| {
        let mut there = at.to_vec();
        there[dim] = place(indices.at(at), from.shape[dim])?;
        there.iter().zip(&from.shape).all(|(i, length)| i < length).then(|| from.at(&there))
    })
}

/// Looks up parts by lists of indices, which are in the last dimension.
pub(super) fn gather_all(
    call: &Call<'_>,
    from: &Constant,
    rest: &[Constant],
) -> Result<Option<Constant>, Error> {
    let [Constant { shape, .. }] = rest else { return Ok(None) };
    let Some((count, leading)) = shape.split_last() else { return Ok(None) };
    if call.integer("batch_dims", 0) != 0 || *count > from.shape.len() {
        return Ok(None);
    }
    let result = [leading, &from.shape[*count..]].concat();
    let within: usize = from.shape[*count..].iter().product();
    let start = |list: &[f64]| {
        let mut places = list.iter().zip(&from.shape);
        places.try_fold(0, |start, (index, length)| Some(start * length + place(*index, *length)?))
    };
    let lists: usize = leading.iter().product();
    let starts = (0..lists).map(|at| start(&rest[0].values[at * count..(at + 1) * count]));
    let Some(starts) = starts.collect::<Option<Vec<usize>>>() else { return Ok(None) };
    pieces(from, result, starts.into_iter().map(|start| start * within), within)
}

/// Joins numbers along a dimension.
pub(super) fn concat(call: &Call<'_>, inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let first = &inputs[0];
    let dim = call.axis(0, first.shape.len())?;
    let others = |shape: &[usize]| [&shape[..dim], &shape[dim + 1..]].concat();
    let fits = |input: &Constant| {
        input.shape.len() == first.shape.len() && others(&input.shape) == others(&first.shape)
    };
    if !inputs.iter().all(fits) {
        return Ok(None);
    }
    let mut shape = first.shape.clone();
    shape[dim] = inputs.iter().map(|input| input.shape[dim]).sum();
    build(shape, first, |at| {
        let mut there = at.to_vec();
        let part = inputs.iter().find(|input| {
            let inside = there[dim] < input.shape[dim];
            there[dim] -= if inside { 0 } else { input.shape[dim] };
            inside
        });
        part.map(|part| part.at(&there))
    })
}

/// Cuts out a range of every dimension.
pub(super) fn slice(importer: &Importer<'_>, from: &Constant) -> Result<Option<Constant>, Error> {
    let mut parts: Vec<(usize, usize)> = from.shape.iter().map(|length| (0, *length)).collect();
    for (dim, start, end, step) in operator::ranges(importer, &from.shape)? {
        if step != 1 {
            return Ok(None);
        }
        parts[dim] = (start, end.max(start));
    }
    let shape = parts.iter().map(|(start, end)| end - start).collect();
    let steps = steps(from, from.shape.len());
    let first = parts.iter().zip(&steps).map(|((start, _), step)| start * step).sum();
    Ok(Some(strided(from, shape, &steps, first)))
}

/// Reorders dimensions.
pub(super) fn transpose(call: &Call<'_>, from: &Constant) -> Result<Option<Constant>, Error> {
    let order = operator::order(call, from.shape.len())?;
    let shape = order.iter().map(|dim| from.shape[*dim]).collect();
    let steps = steps(from, from.shape.len());
    let turned: Vec<usize> = order.iter().map(|dim| steps[*dim]).collect();
    Ok(Some(strided(from, shape, &turned, 0)))
}

/// Returns the cumulative sums along a dimension.
pub(super) fn cumulative(call: &Call<'_>, inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let [from, axis] = inputs else { return Ok(None) };
    if call.integer("exclusive", 0) != 0 || call.integer("reverse", 0) != 0 {
        return Ok(None);
    }
    let dim = dimension(axis.single().unwrap_or(0.0) as i64, from.shape.len())?;
    let mut sums = from.clone();
    let inner: usize = from.shape[dim + 1..].iter().product();
    for at in inner..sums.values.len() {
        if !(at / inner).is_multiple_of(from.shape[dim]) {
            sums.values[at] += sums.values[at - inner];
        }
    }
    Ok(Some(sums))
}

/// Returns the product of matrices, for every index of the dimensions before them.
pub(super) fn product(inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let [x, y] = inputs else { return Ok(None) };
    let ([leading @ .., rows, inner], [others @ .., same, columns]) = (&x.shape[..], &y.shape[..])
    else {
        return Ok(None);
    };
    let elements: usize = leading.iter().chain([rows, columns]).product();
    let terms = elements.checked_mul(*inner).filter(|terms| *terms <= ELEMENTS_MAX);
    if leading != others || inner != same || terms.is_none() {
        return Ok(None);
    }
    let shape = [leading, &[*rows, *columns]].concat();
    build(shape, x, |at| {
        let (lead, [row, column]) = at.split_last_chunk::<2>()?;
        let term =
            |k: usize| x.at(&[lead, &[*row, k]].concat()) * y.at(&[lead, &[k, *column]].concat());
        Some((0..*inner).map(term).sum())
    })
}
