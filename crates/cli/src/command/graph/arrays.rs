//! Values of vertices: reading them from NumPy arrays, and encoding them as features of a file.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use thinwire_graph::read::{self, Dtype, Matrix};
use thinwire_graph::{Features, NO_LABEL, Split, TYPES_MAX};
use thinwire_rows::Format;

use crate::failure::hinted;

/// Reads an array that has a row of numbers per vertex.
///
/// # Errors
/// If the file cannot be read, has another number of rows, or does not contain numbers.
pub fn matrix(path: &Path, vertices: u32) -> Result<Matrix> {
    let matrix = read::matrix(path)?;
    if let Dtype::Text(_) = matrix.dtype {
        bail!("{}: an array of text, expected numbers", path.display());
    }
    if matrix.rows != u64::from(vertices) || matrix.columns == 0 || matrix.columns > 1 << 24 {
        let Matrix { rows, columns, .. } = matrix;
        bail!(
            "{}: an array of {rows} x {columns}, expected {vertices} rows, one per vertex, \
             of 1 to 16777216 numbers",
            path.display()
        );
    }
    Ok(matrix)
}

/// Checks that a format can represent all numbers of an array.
///
/// # Errors
/// If it cannot represent one of them, or a number is not finite.
pub fn ensure_held(path: &Path, matrix: &Matrix, format: Format) -> Result<()> {
    let is_held = |at: &usize| matrix.real(*at).abs() <= format.max();
    let Some(at) = (0..matrix.len()).find(|at| !is_held(at)) else { return Ok(()) };
    let (value, columns) = (matrix.real(at), matrix.columns as usize);
    let (path, row, column, most) = (path.display(), at / columns, at % columns, format.max());
    let error = anyhow!("{path}: {value} in row {row}, column {column}, counted from 0");
    match value.is_finite() {
        true => {
            Err(hinted(error.context(format!("{format} holds at most {most}")), "--format f32"))
        }
        false => {
            Err(hinted(error, "replace what is missing, infinite or beyond 3.4e38 by numbers"))
        }
    }
}

/// Reads an array that has one whole number per vertex.
fn column(path: &Path, vertices: u32) -> Result<Matrix> {
    let matrix = matrix(path, vertices)?;
    if matrix.columns != 1 || !matches!(matrix.dtype, Dtype::Int(_) | Dtype::Uint(_) | Dtype::Bool)
    {
        let Matrix { dtype, columns, .. } = matrix;
        bail!(
            "{}: an array of {columns} {dtype} per vertex, expected one whole number",
            path.display()
        );
    }
    Ok(matrix)
}

/// Reads a class per vertex. A number below 0 means that the vertex has no class.
///
/// # Errors
/// As for [`matrix`], or if a number is not a class.
pub fn labels(path: &Path, vertices: u32) -> Result<Vec<u32>> {
    let matrix = column(path, vertices)?;
    let label = |at: usize| match matrix.real(at) < 0.0 {
        true => Ok(NO_LABEL),
        false => number(path, "label", NO_LABEL, &matrix, at),
    };
    (0..vertices as usize).map(label).collect()
}

/// Reads a type per vertex; types start at 0.
///
/// # Errors
/// As for [`matrix`], or if a number is not a type.
pub fn types(path: &Path, vertices: u32) -> Result<Vec<u32>> {
    let matrix = column(path, vertices)?;
    (0..vertices as usize).map(|at| number(path, "type", TYPES_MAX, &matrix, at)).collect()
}

/// Returns the number of a vertex, such as its class, which must be below `end`.
fn number(path: &Path, what: &str, end: u32, matrix: &Matrix, at: usize) -> Result<u32> {
    let number = matrix.whole(at).with_context(|| path.display().to_string())?;
    match u32::try_from(number) {
        Ok(number) if number < end => Ok(number),
        _ => bail!("{}: {what} {number} of vertex {at}, expected below {end}", path.display()),
    }
}

/// Reads the use of every vertex.
///
/// # Errors
/// As for [`matrix`], or if a number is not a use.
pub fn split(path: &Path, vertices: u32) -> Result<Vec<Split>> {
    let matrix = column(path, vertices)?;
    let uses = |at: usize| {
        let number = matrix.whole(at).with_context(|| path.display().to_string())?;
        let split = u8::try_from(number).ok().and_then(Split::from_byte);
        let path = path.display();
        split.with_context(|| format!("{path}: vertex {at} has use {number}, expected 0 to 3"))
    };
    (0..vertices as usize).map(uses).collect()
}

/// Calls `write` with features of `columns` numbers per vertex, encoded in a format. `values` writes the
/// numbers of one vertex.
pub fn with_features<T>(
    format: Format,
    columns: u32,
    values: &dyn Fn(u32, &mut [f32]),
    write: impl FnOnce(Features<'_>) -> T,
) -> T {
    let numbers = RefCell::new(vec![0.0; columns as usize]);
    let row = |vertex: u32, row: &mut [u8]| {
        let mut numbers = numbers.borrow_mut();
        values(vertex, &mut numbers);
        format.encode(&numbers, row);
    };
    let name = format.to_string();
    let width = format.width(columns as usize) as u32;
    write(Features { format: &name, columns, width, row: &row })
}
