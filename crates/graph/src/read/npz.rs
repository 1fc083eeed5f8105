//! Sparse matrices of SciPy, and edge indices, in NumPy archives.

use std::io::{Read, Seek};

use zip::ZipArchive;

use super::edges::{Edges, checked, count_vertices, ensure_square};
use super::naming::{Naming, as_given};
use super::npy::{Dense, Dtype, Matrix};
use super::options::{Numbering, Options, Orientation, Weighting};
use crate::error::Error;

/// Prefixes that the names of a compressed matrix's arrays may have.
const PREFIXES: [&str; 2] = ["", "adj_"];

/// Reads the arrays with these names, of at most `bytes_max` bytes each.
pub(super) fn arrays<const N: usize>(
    stream: impl Read + Seek,
    names: [&str; N],
    bytes_max: u64,
) -> Result<[Dense; N], Error> {
    let mut archive = open(stream)?;
    let mut found = Vec::new();
    for name in names {
        let array = named(&mut archive, name, |stream| Dense::read(stream, bytes_max))?;
        found.push(
            array.ok_or_else(|| others(&archive, &format!("arrays {}", names.join(" and "))))?,
        );
    }
    Ok(found.try_into().expect("one array for each name"))
}

fn open<R: Read + Seek>(stream: R) -> Result<ZipArchive<R>, Error> {
    ZipArchive::new(stream).map_err(|error| Error::format(format!("no archive of arrays: {error}")))
}

/// Returns the error for an archive that has other arrays than these.
fn others<R: Read + Seek>(archive: &ZipArchive<R>, expected: &str) -> Error {
    let names: Vec<_> = archive.file_names().take(8).flatten().collect();
    let names = names.join(", ").escape_debug().to_string();
    Error::format(format!("an archive with {names}, expected {expected}"))
}

/// Reads `indptr` and `indices` (CSR or CSC, by `format` or the options), `row` and `col` (COO), or `edge_index`.
/// Weights are `data` of a matrix and `edge_weight` of an index.
pub(super) fn edges(stream: impl Read + Seek, options: Options) -> Result<Edges, Error> {
    let (mut archive, named) = (open(stream)?, options.vertices);
    let weighted = |archive: &mut ZipArchive<_>, edges: Edges, name: &str| {
        if options.weights == Weighting::Drop {
            return Ok(edges);
        }
        let values = member(archive, name)?;
        let weights = values.map(|values| weights(&values, edges.pairs.len(), name)).transpose()?;
        Ok(Edges { weights, ..edges })
    };
    if let Some(index) = member(&mut archive, "edge_index")? {
        refuse_orientation(options, "edge_index, whose rows are sources and destinations")?;
        return weighted(&mut archive, edges_of_index(&index, options)?, "edge_weight");
    }
    if options.numbering != Numbering::FromZero {
        let found = "other numbers of vertices of a matrix".to_owned();
        return Err(Error::value(format!("{found}, expected an edge list or edge_index")));
    }
    for prefix in PREFIXES {
        let mut array = |name: &str| member(&mut archive, &format!("{prefix}{name}"));
        let shape = array("shape")?;
        let format = array("format")?.map(|format| letters(&format)).transpose()?;
        if let (Some(offsets), Some(columns)) = (array("indptr")?, array("indices")?) {
            let mut edges = compressed(&offsets, &columns, shape.as_ref(), named)?;
            if orientation(format.as_deref(), options.orientation)? == Orientation::In {
                edges.pairs.iter_mut().for_each(|(row, column)| std::mem::swap(row, column));
            }
            return weighted(&mut archive, edges, &format!("{prefix}data"));
        }
        if let (Some(rows), Some(columns)) = (array("row")?, array("col")?) {
            refuse_orientation(options, "row and col")?;
            let edges = coordinates(&rows, &columns, shape.as_ref(), named)?;
            return weighted(&mut archive, edges, &format!("{prefix}data"));
        }
    }
    Err(others(&archive, "arrays indptr and indices, row and col, or edge_index"))
}

/// Returns whether a compressed matrix lists in-neighbours or out-neighbours, by its format or the caller's
/// options.
///
/// # Errors
/// If neither determines it, or they contradict each other.
fn orientation(format: Option<&str>, said: Option<Orientation>) -> Result<Orientation, Error> {
    let of_format = match format {
        Some("csc") => Some(Orientation::In),
        Some("csr") => Some(Orientation::Out),
        _ => None,
    };
    match (of_format, said) {
        (Some(found), Some(said)) if found != said => {
            let format = format.unwrap_or_default();
            Err(Error::value(format!(
                "orientation {said} of a matrix of format '{format}', expected {found}"
            )))
        }
        (Some(found), _) | (None, Some(found)) => Ok(found),
        (None, None) => {
            let error = "indptr and indices without a format, expected an orientation";
            let hint = "--orientation in, if indices has the in-neighbours of each vertex (CSC), or --orientation out (CSR)";
            Err(Error::format(error.to_owned()).with_hint(hint))
        }
    }
}

/// Refuses the option of an orientation for arrays that determine theirs.
fn refuse_orientation(options: Options, found: &str) -> Result<(), Error> {
    match options.orientation {
        None => Ok(()),
        Some(said) => {
            let error = format!("orientation {said} of {found}, expected none");
            Err(Error::value(error))
        }
    }
}

/// Reads pairs from an array of two rows, as in PyTorch Geometric, or of two columns.
pub(super) fn edges_of_index(index: &Matrix, options: Options) -> Result<Edges, Error> {
    let (first, second, step, count) = match (index.rows, index.columns) {
        (2, columns) => (0, columns as usize, 1, columns as usize),
        (rows, 2) => (0, 1, 2, rows as usize),
        (rows, columns) => {
            return Err(Error::format(format!(
                "an array of {rows} x {columns}, expected two rows or two columns"
            )));
        }
    };
    let mut naming = (options.numbering == Numbering::Ids).then(Naming::default);
    let mut vertex = |at: usize| {
        let found = match &mut naming {
            Some(naming) => naming.number(index.text(at)?.as_bytes()),
            None => as_given(index.whole(at)?, options.numbering),
        };
        found.map_err(|(found, expected)| {
            let hint = "--relabel numbers vertices that have other ids, and keeps their ids";
            Error::format(format!("{found} at position {at}, expected {expected}")).with_hint(hint)
        })
    };
    let mut pairs = Vec::new();
    for at in 0..count {
        pairs.push((vertex(first + at * step)?, vertex(second + at * step)?));
    }
    Edges::of_file(pairs, naming, options.vertices)
}

fn compressed(
    offsets: &Matrix,
    columns: &Matrix,
    shape: Option<&Matrix>,
    named: Option<u32>,
) -> Result<Edges, Error> {
    let rows = (offsets.len() as u64).saturating_sub(1);
    let count = side(shape)?.unwrap_or(rows).max(rows);
    let (mut pairs, mut start) = (Vec::new(), 0);
    for row in 0..rows {
        let (first, end) = (offsets.whole(row as usize)?, offsets.whole(row as usize + 1)?);
        if first != start || end < first || end > columns.len() as u64 {
            let what = format!("row {row} goes from {first} to {end}");
            let edges = columns.len();
            return Err(Error::format(format!(
                "{what}, expected it to begin at {start} and end at {edges} or before"
            )));
        }
        for at in first..end {
            pairs.push((row as u32, vertex(columns, at as usize)?));
        }
        start = end;
    }
    if start != columns.len() as u64 {
        let edges = columns.len();
        return Err(Error::format(format!(
            "the rows end at {start}, expected {edges}, the length of indices"
        )));
    }
    finish(pairs, count, named)
}

fn coordinates(
    rows: &Matrix,
    columns: &Matrix,
    shape: Option<&Matrix>,
    named: Option<u32>,
) -> Result<Edges, Error> {
    let (found, expected) = (columns.len(), rows.len());
    if found != expected {
        return Err(Error::format(format!("{found} columns, expected {expected}, one per row")));
    }
    let mut pairs = Vec::new();
    for at in 0..found {
        pairs.push((vertex(rows, at)?, vertex(columns, at)?));
    }
    let largest = pairs.iter().map(|(a, b)| u64::from(*a.max(b)) + 1).max().unwrap_or(0);
    let count = side(shape)?.unwrap_or(largest);
    finish(pairs, count, named)
}

/// Checks that all vertices exist.
fn finish(pairs: Vec<(u32, u32)>, count: u64, named: Option<u32>) -> Result<Edges, Error> {
    let vertices = count_vertices(count, pairs.len(), named)?;
    let outside = pairs.iter().position(|(a, b)| *a.max(b) >= vertices);
    match outside {
        None => Ok(Edges { vertices, pairs, weights: None, ..Edges::default() }),
        Some(at) => {
            let (a, b) = pairs[at];
            Err(Error::vertex(&format!("entry {at}"), u64::from(a.max(b)), vertices))
        }
    }
}

/// Reads a weight per edge.
fn weights(values: &Matrix, edges: usize, name: &str) -> Result<Vec<f32>, Error> {
    if matches!(values.dtype, Dtype::Text(_)) || values.len() != edges {
        let found = format!("array {name}: {} numbers of {}", values.len(), values.dtype);
        return Err(Error::format(format!("{found}, expected {edges} weights, one per edge")));
    }
    let weight = |at: usize| {
        let weight = values.real(at);
        checked(weight, &format!("array {name}: weight of entry {at} is"), &weight.to_string())
    };
    (0..edges).map(weight).collect()
}

fn vertex(array: &Matrix, at: usize) -> Result<u32, Error> {
    let number = array.whole(at)?;
    u32::try_from(number).map_err(|_| {
        Error::format(format!("vertex {number} at position {at}, expected below 2^32"))
    })
}

/// Returns the number of rows and of columns of a square matrix.
fn side(shape: Option<&Matrix>) -> Result<Option<u64>, Error> {
    let Some(shape) = shape else { return Ok(None) };
    match shape.len() {
        2 => {
            let (rows, columns) = (shape.whole(0)?, shape.whole(1)?);
            ensure_square(rows, columns)?;
            Ok(Some(rows))
        }
        found => Err(Error::format(format!("a shape of {found} numbers, expected 2"))),
    }
}

/// Returns the name of a format, which SciPy stores as text with one or four bytes per letter.
fn letters(format: &Matrix) -> Result<String, Error> {
    let letters: Vec<u8> = format.bytes.iter().copied().filter(|byte| *byte != 0).collect();
    let name = String::from_utf8_lossy(&letters).into_owned();
    match (format.dtype, &*name) {
        (Dtype::Text(_), "csr" | "csc" | "coo") => Ok(name),
        _ => {
            let found = name.escape_debug();
            Err(Error::format(format!("a matrix of format '{found}', expected csr, csc or coo")))
        }
    }
}

fn member<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
) -> Result<Option<Matrix>, Error> {
    named(archive, name, |stream| Matrix::read(stream))
}

/// Reads the array with this name, if there is one.
fn named<R: Read + Seek, T>(
    archive: &mut ZipArchive<R>,
    name: &str,
    read: impl FnOnce(&mut dyn Read) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let file = format!("{name}.npy");
    if archive.index_for_name(&file).is_none() {
        return Ok(None);
    }
    let in_array = |error: String| Error::format(format!("array {name}: {error}"));
    let mut stream = archive.by_name(&file).map_err(|error| in_array(error.to_string()))?;
    let array = read(&mut stream).map_err(|error| in_array(error.to_string()))?;
    // The checksum of a member is compared where it ends.
    match stream.read(&mut [0]) {
        Ok(0) => Ok(Some(array)),
        Ok(_) => Err(in_array("extra bytes after its numbers, expected the end".to_owned())),
        Err(error) => Err(in_array(error.to_string())),
    }
}
