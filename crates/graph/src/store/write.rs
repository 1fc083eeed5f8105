//! Writes files of graphs.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytemuck::cast_slice;
use flate2::Crc;

use super::ids::Ids;
use super::layout::{ARRAYS, Array, HEADER_BYTES, Header, IdTable, Layout, TYPES_MAX};
use crate::adjacency::Adjacency;
use crate::error::Error;
use crate::sample::Weights;
use crate::store::{NO_LABEL, Split, ensure_little_endian};

/// Content of a graph's file.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    /// The topology.
    pub graph: &'a Adjacency,
    /// Weights of all edges.
    pub weights: Option<&'a Weights>,
    /// Types of all vertices, from 0.
    pub types: Option<&'a [u32]>,
    /// Features of all vertices.
    pub features: Option<Features<'a>>,
    /// Labels of all vertices, [`NO_LABEL`] for those without one.
    pub labels: Option<&'a [u32]>,
    /// Uses of all vertices.
    pub split: Option<&'a [Split]>,
    /// Bounds of parts (one more than parts), and the numbers of vertices before parts were made.
    pub parts: Option<(&'a [u32], &'a [u32])>,
    /// Ids of all vertices in the data from which the graph was imported.
    pub ids: Option<&'a Ids>,
}

impl<'a> Contents<'a> {
    /// Creates the content of a file with only a topology.
    pub fn new(graph: &'a Adjacency) -> Contents<'a> {
        Contents {
            graph,
            weights: None,
            types: None,
            features: None,
            labels: None,
            split: None,
            parts: None,
            ids: None,
        }
    }
}

/// Features of all vertices. They are requested one row at a time, so that they need not be in memory.
#[derive(Clone, Copy)]
pub struct Features<'a> {
    /// Name of the format of a row's numbers: `f32`, `f16` or `int8`.
    pub format: &'a str,
    /// Numbers per row.
    pub columns: u32,
    /// Bytes per row.
    pub width: u32,
    /// Writes the row of a vertex.
    pub row: &'a dyn Fn(u32, &mut [u8]),
}

/// Writes a graph's file. It appears under its name when it is complete, and replaces a regular file with
/// this name.
///
/// # Errors
/// If lengths contradict each other, the file cannot be written, or the path is a folder or a device.
pub fn write(path: &Path, contents: &Contents<'_>) -> Result<(), Error> {
    let header = header(contents).map_err(|error| error.of_file(path))?;
    let (layout, _) = header.layout().map_err(|error| error.of_file(path))?;
    let failed = |error| Error::io("cannot write", error).of_file(path);
    let path = &*regular(path).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let partial = path.with_file_name(name);
    let written = File::create(&partial).and_then(|file| {
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut out = Out { file, at: 0, sum: Crc::new(), sums: Vec::new() };
        out.write(&header.encode())?;
        out.sum.reset();
        write_arrays(&mut out, &header, &layout, contents)?;
        // The sums are known when all arrays are written.
        let sums = out.sums.as_slice().try_into().expect("a sum for each array");
        out.file.seek(SeekFrom::Start(0))?;
        out.file.write_all(&Header { sums: Some(sums), ..header.clone() }.encode())?;
        out.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&partial, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(failed)
}

/// Returns the path of the file to replace, following a link at `path`.
fn regular(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path),
        Ok(_) => Err(io::Error::other("there is something else than a regular file")),
        Err(_) => Ok(path.to_owned()),
    }
}

/// File that is written from beginning to end.
struct Out {
    file: BufWriter<File>,
    at: u64,
    /// Checksum of the array that is being written, and of the zeros before it.
    sum: Crc,
    /// Checksums of the arrays that are complete.
    sums: Vec<u32>,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }

    /// Begins an array at a byte of the file, after filling up with zeros.
    fn begin(&mut self, start: u64) -> io::Result<()> {
        let zeros = [0; HEADER_BYTES];
        self.write(&zeros[..(start - self.at) as usize])
    }

    /// Ends an array.
    fn end(&mut self) {
        self.sums.push(self.sum.sum());
        self.sum.reset();
    }
}

fn header(contents: &Contents<'_>) -> Result<Header, Error> {
    ensure_little_endian()?;
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
    check("ids of vertices", contents.ids.map(Ids::len))?;
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
    let known = |labels: &[u32]| labels.iter().copied().filter(|label| *label != NO_LABEL).max();
    let header = Header {
        vertices,
        edges: contents.graph.edges(),
        features,
        classes: contents.labels.map(|labels| known(labels).map_or(0, |label| label + 1)),
        has_split: contents.split.is_some(),
        parts: contents.parts.map(|(bounds, _)| bounds.len().saturating_sub(1) as u32),
        has_weights: contents.weights.is_some(),
        types: contents.types.map(|types| types.iter().max().map_or(0, |it| it + 1)),
        ids: contents.ids.map(|ids| match ids {
            Ids::Numbers(_) => IdTable::Numbers,
            Ids::Texts(texts) => IdTable::Texts(texts.iter().map(|text| text.len() as u64).sum()),
        }),
        sums: Some([0; ARRAYS]),
    };
    header.check_features()?;
    Ok(header)
}

fn write_arrays(
    out: &mut Out,
    header: &Header,
    layout: &Layout,
    contents: &Contents<'_>,
) -> io::Result<()> {
    for (array, place) in layout.arrays() {
        out.begin(place.start)?;
        write_array(out, header, array, contents)?;
        out.end();
    }
    Ok(())
}

fn write_array(
    out: &mut Out,
    header: &Header,
    array: Array,
    contents: &Contents<'_>,
) -> io::Result<()> {
    let (bounds, origins) = contents.parts.unwrap_or_default();
    match array {
        Array::Offsets => out.write(cast_slice(contents.graph.offsets())),
        Array::Neighbors => out.write(cast_slice(contents.graph.all_neighbors())),
        Array::Features => write_features(out, header, contents),
        Array::Labels => out.write(cast_slice(contents.labels.unwrap_or_default())),
        Array::Split => {
            let uses = contents.split.unwrap_or_default().iter();
            out.write(&uses.map(|split| *split as u8).collect::<Vec<u8>>())
        }
        Array::Bounds => out.write(cast_slice(bounds)),
        Array::Origins => out.write(cast_slice(origins)),
        Array::Weights => {
            out.write(cast_slice(contents.weights.map(Weights::values).unwrap_or_default()))
        }
        Array::Types => out.write(cast_slice(contents.types.unwrap_or_default())),
        Array::Ids => match contents.ids {
            None => Ok(()),
            Some(Ids::Numbers(numbers)) => out.write(cast_slice(numbers)),
            Some(Ids::Texts(texts)) => write_ends(out, texts),
        },
        Array::Texts => match contents.ids {
            Some(Ids::Texts(texts)) => texts.iter().try_for_each(|it| out.write(it.as_bytes())),
            Some(Ids::Numbers(_)) | None => Ok(()),
        },
    }
}

fn write_features(out: &mut Out, header: &Header, contents: &Contents<'_>) -> io::Result<()> {
    let Some(features) = &contents.features else { return Ok(()) };
    let mut row = vec![0; features.width as usize];
    (0..header.vertices).try_for_each(|vertex| {
        (features.row)(vertex, &mut row);
        out.write(&row)
    })
}

/// Writes the start of each text, and the end of the last one.
fn write_ends(out: &mut Out, texts: &[String]) -> io::Result<()> {
    let mut end = 0_u64;
    out.write(&end.to_le_bytes())?;
    texts.iter().try_for_each(|text| {
        end += text.len() as u64;
        out.write(&end.to_le_bytes())
    })
}
