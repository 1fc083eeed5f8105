//! Writing files of graphs.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::layout::{FORMAT_BYTES_MAX, HEADER_BYTES, Header, Layout, TYPES_MAX};
use super::split::Split;
use crate::adjacency::Adjacency;
use crate::error::Error;
use crate::sample::Weights;
use crate::store::NO_LABEL;

/// What a file of a graph gets.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    /// The topology.
    pub graph: &'a Adjacency,
    /// Weights of all edges.
    pub weights: Option<&'a Weights>,
    /// Types of all vertices, from 0 on.
    pub types: Option<&'a [u32]>,
    /// Features of all vertices.
    pub features: Option<Features<'a>>,
    /// Labels of all vertices, [`NO_LABEL`] where one has none.
    pub labels: Option<&'a [u32]>,
    /// Uses of all vertices.
    pub split: Option<&'a [Split]>,
    /// Bounds of parts, one more than parts, and the numbers that vertices had before parts were made.
    pub parts: Option<(&'a [u32], &'a [u32])>,
}

impl<'a> Contents<'a> {
    /// Creates the contents of a file with a topology and nothing else.
    pub fn new(graph: &'a Adjacency) -> Contents<'a> {
        let (weights, types, features, labels, split, parts) = (None, None, None, None, None, None);
        Contents { graph, weights, types, features, labels, split, parts }
    }
}

/// Features of all vertices, asked for one row at a time, so that they need not be in memory.
#[derive(Clone, Copy)]
pub struct Features<'a> {
    /// Name of the format of a row's numbers, of at most eight lower-case letters and digits.
    pub format: &'a str,
    /// Numbers of a row.
    pub columns: u32,
    /// Bytes of a row.
    pub width: u32,
    /// Writes the row of a vertex.
    pub row: &'a dyn Fn(u32, &mut [u8]),
}

/// Writes a file of a graph. It appears under its name when it is complete, and replaces a regular file there.
///
/// # Errors
/// If lengths contradict each other, the file cannot be written, or there is a folder or device.
pub fn write(path: &Path, contents: &Contents<'_>) -> Result<(), Error> {
    let header = header(contents).map_err(|error| error.of_file(path))?;
    let (layout, _) = header.layout().map_err(|error| error.of_file(path))?;
    let failed = |error| Error::io("cannot write", error).of_file(path);
    let path = &*regular(path).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let partial = path.with_file_name(name);
    let written = File::create(&partial).and_then(|file| {
        let mut out = Out { file: BufWriter::with_capacity(1 << 20, file), at: 0 };
        write_arrays(&mut out, &header, &layout, contents)?;
        out.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&partial, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(failed)
}

/// Returns the path of the file that is replaced, which a link at `path` leads to.
fn regular(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path),
        Ok(_) => Err(io::Error::other("there is something else than a regular file")),
        Err(_) => Ok(path.to_owned()),
    }
}

/// File that is written from its beginning to its end.
struct Out {
    file: BufWriter<File>,
    at: u64,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes zeros up to a byte of the file.
    fn pad(&mut self, start: u64) -> io::Result<()> {
        let zeros = [0; HEADER_BYTES];
        self.write(&zeros[..(start - self.at) as usize])
    }
}

fn header(contents: &Contents<'_>) -> Result<Header, Error> {
    let vertices = contents.graph.vertices();
    let check = |what: &str, found: Option<usize>| match found {
        Some(found) if found != vertices as usize => {
            Err(Error::length(format!("{found} {what}, expected {vertices}, one per vertex")))
        }
        _ => Ok(()),
    };
    check("labels", contents.labels.map(<[u32]>::len))?;
    check("uses of vertices", contents.split.map(<[Split]>::len))?;
    check("types of vertices", contents.types.map(<[u32]>::len))?;
    check("origins of vertices", contents.parts.map(|(_, origins)| origins.len()))?;
    if let Some(weights) = contents.weights {
        Weights::check_length(weights.values().len(), contents.graph.edges())?;
    }
    let numbers = contents.types.unwrap_or_default().iter();
    if let Some((vertex, number)) = numbers.enumerate().find(|(_, number)| **number >= TYPES_MAX) {
        return Err(Error::value(format!(
            "type {number} of vertex {vertex}, expected below {TYPES_MAX}"
        )));
    }
    let features = contents.features.map(|rows| (rows.format.to_owned(), rows.columns, rows.width));
    if let Some((format, ..)) = &features
        && (format.is_empty() || format.len() > FORMAT_BYTES_MAX)
    {
        return Err(Error::value(format!("format '{format}', expected a name of 1 to 8 letters")));
    }
    let known = |labels: &[u32]| labels.iter().copied().filter(|label| *label != NO_LABEL).max();
    Ok(Header {
        vertices,
        edges: contents.graph.edges(),
        features,
        classes: contents.labels.map(|labels| known(labels).map_or(0, |label| label + 1)),
        has_split: contents.split.is_some(),
        parts: contents.parts.map(|(bounds, _)| bounds.len().saturating_sub(1) as u32),
        has_weights: contents.weights.is_some(),
        types: contents.types.map(|types| types.iter().max().map_or(0, |it| it + 1)),
    })
}

fn write_arrays(
    out: &mut Out,
    header: &Header,
    layout: &Layout,
    contents: &Contents<'_>,
) -> io::Result<()> {
    out.write(&header.encode())?;
    out.pad(layout.offsets.start)?;
    for offset in contents.graph.offsets() {
        out.write(&offset.to_le_bytes())?;
    }
    out.pad(layout.neighbors.start)?;
    write_numbers(out, contents.graph.all_neighbors())?;
    out.pad(layout.features.start)?;
    if let Some(features) = &contents.features {
        let mut row = vec![0; features.width as usize];
        for vertex in 0..header.vertices {
            (features.row)(vertex, &mut row);
            out.write(&row)?;
        }
    }
    out.pad(layout.labels.start)?;
    write_numbers(out, contents.labels.unwrap_or_default())?;
    out.pad(layout.split.start)?;
    for split in contents.split.unwrap_or_default() {
        out.write(&[*split as u8])?;
    }
    let (bounds, origins) = contents.parts.unwrap_or_default();
    out.pad(layout.bounds.start)?;
    write_numbers(out, bounds)?;
    out.pad(layout.origins.start)?;
    write_numbers(out, origins)?;
    out.pad(layout.weights.start)?;
    let weights = contents.weights.map(Weights::values).unwrap_or_default();
    weights.iter().try_for_each(|weight| out.write(&weight.to_le_bytes()))?;
    out.pad(layout.types.start)?;
    write_numbers(out, contents.types.unwrap_or_default())
}

fn write_numbers(out: &mut Out, numbers: &[u32]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| out.write(&number.to_le_bytes()))
}
