//! Known numbers that depend on nothing but shapes.

use thinwire_model::Error;

use crate::constant::{Constant, ELEMENTS_MAX, elements, large};
use crate::import::{Call, Importer, refuse};

/// Returns the numbers of a constant node.
pub(super) fn constant(call: &Call<'_>) -> Result<Constant, Error> {
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
        None => Err(refuse("a constant without a value of numbers")),
    }
}

/// Returns the shape of an input.
pub(super) fn shape(importer: &Importer<'_>) -> Result<Constant, Error> {
    let shape = importer.shape(importer.value(0)?);
    let length = shape.len() as i64;
    let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
    let (start, end) =
        (place(importer.call.integer("start", 0)), place(importer.call.integer("end", length)));
    Ok(Constant::list(shape.get(start..end).unwrap_or(&[]).iter().copied()))
}

/// Returns numbers as lengths of dimensions.
pub(super) fn lengths(constant: &Constant) -> Vec<usize> {
    constant.values.iter().map(|value| value.max(0.0) as usize).collect()
}

/// Returns numbers at equal distances.
pub(super) fn range(inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let numbers: Option<Vec<f64>> = inputs.iter().map(Constant::single).collect();
    let Some([start, limit, step]) = numbers.as_deref() else { return Ok(None) };
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > ELEMENTS_MAX as f64 {
        return Err(large());
    }
    let values: Vec<f64> = (0..count as usize).map(|at| start + at as f64 * step).collect();
    Ok(Some(Constant { shape: vec![values.len()], values, whole: inputs[0].whole }))
}

/// Returns a tensor of a shape with one value everywhere.
pub(super) fn filled(call: &Call<'_>, shape: &Constant) -> Result<Option<Constant>, Error> {
    let value = match call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        Some(tensor) => Constant::read(tensor)?,
        None => Constant { whole: false, ..Constant::integer(0) },
    };
    let shape = lengths(shape);
    let values = vec![value.single().unwrap_or(0.0); elements(&shape)?];
    Ok(Some(Constant { shape, values, whole: value.whole }))
}

/// Returns the lower or upper triangle of the last two dimensions, and zero elsewhere.
pub(super) fn triangle(call: &Call<'_>, inputs: &[Constant]) -> Constant {
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
