//! Readers of graphs in the formats of other programs.
//!
//! All return [`Edges`]: pairs of source and destination, in the order of the file. An edge from a to b in an
//! edge list, a matrix (row to column) or an adjacency list (vertex to successors) is the pair `(a, b)`.
//! Files may be compressed with gzip. No reader allocates memory because of a number in the file: memory
//! grows with the data that was read, and a graph of e edges has at most 2^20 + 64e vertices, unless the
//! caller gives their number. Weights of edges are kept unless the options say otherwise.

mod edge_list;
mod edges;
mod lines;
mod matrix_market;
mod naming;
mod npy;
mod npz;
mod options;
mod scan;
mod webgraph;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

pub use edges::Edges;
pub use npy::{Dense, Dtype, Matrix};
pub use options::{Columns, Header, Numbering, Options, Orientation, Weighting};

use crate::error::Error;

/// Format of a file with a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Lines of two vertices, separated by blanks or commas, as in SNAP's and KONECT's texts and in CSV.
    /// Lines that begin with `#` or `%` are comments.
    EdgeList,
    /// Coordinates of a matrix in the exchange format of Matrix Market.
    MatrixMarket,
    /// Lists of successors, one line per vertex, after a line with the number of vertices: WebGraph's ASCII
    /// format.
    WebGraph,
    /// NumPy array with two rows or two columns of vertices.
    Npy,
    /// NumPy archive: a sparse matrix of SciPy, or `edge_index`.
    Npz,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 5] =
        [Format::EdgeList, Format::MatrixMarket, Format::WebGraph, Format::Npy, Format::Npz];

    /// Returns the suffixes of names of files in this format.
    pub fn suffixes(self) -> &'static [&'static str] {
        match self {
            Format::EdgeList => &["txt", "csv", "tsv", "el", "edges"],
            Format::MatrixMarket => &["mtx"],
            Format::WebGraph => &["graph-txt"],
            Format::Npy => &["npy"],
            Format::Npz => &["npz"],
        }
    }

    /// Returns the format for the suffix of a name, which `.gz` may follow.
    ///
    /// # Errors
    /// If no format has such a suffix.
    pub fn of(path: &Path) -> Result<Format, Error> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(".gz").unwrap_or(&name);
        let end = stem.rsplit('.').next().unwrap_or_default();
        let found = Format::ALL.into_iter().find(|format| format.suffixes().contains(&end));
        found.ok_or_else(|| {
            let ends = Format::ALL.iter().flat_map(|format| format.suffixes());
            let all: Vec<_> = ends.map(|end| format!(".{end}")).collect();
            let all = all.join(", ");
            let error = format!("a name that ends in '{end}', expected one of {all}");
            let error = Error::format(error).of_file(path);
            match end {
                "parquet" => error.with_hint(
                    "in Python, read_parquet of thinwire.torch.graph.parquet and save write a file",
                ),
                _ => error,
            }
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suffixes()[0])
    }
}

/// Mark at the beginning of a text in UTF-8.
const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the edges of a file.
///
/// # Errors
/// If the file cannot be read, is not in the format, or has neither edges nor vertices. The message has the
/// path, and for texts the line.
pub fn edges(path: &Path, format: Format, options: Options) -> Result<Edges, Error> {
    let read = || {
        let failed = |error| Error::io("cannot open", error);
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
        if format == Format::Npz {
            check(format, options)?;
            return npz::edges(file, options);
        }
        match path.extension().is_some_and(|end| end == "gz") {
            false => from_stream(file, format, options),
            true => {
                let start = file.fill_buf().map_err(|error| Error::io("cannot read", error))?;
                if !start.starts_with(&GZIP) {
                    let message = "not a gzip file, although its name ends in .gz";
                    return Err(Error::value(message.to_owned()));
                }
                let stream = BufReader::with_capacity(1 << 20, MultiGzDecoder::new(file));
                from_stream(stream, format, options)
            }
        }
    };
    read().map_err(|error| error.of_file(path))
}

/// Reads edges from bytes, uncompressed.
///
/// # Errors
/// As [`edges`](edges()), without a path.
pub fn edges_of_bytes(bytes: &[u8], format: Format, options: Options) -> Result<Edges, Error> {
    match format {
        Format::Npz => npz::edges(std::io::Cursor::new(bytes), options),
        _ => from_stream(bytes, format, options),
    }
}

/// Reads a NumPy array, for features, labels or lists of vertices.
///
/// # Errors
/// If the file cannot be read, or is not an array of numbers with one or two dimensions in C order.
pub fn matrix(path: &Path) -> Result<Matrix, Error> {
    let open = || File::open(path).map_err(|error| Error::io("cannot open", error));
    open().and_then(|file| Matrix::read(BufReader::new(file))).map_err(|error| error.of_file(path))
}

/// Reads a NumPy array of any number of dimensions, and at most `bytes_max` bytes.
///
/// # Errors
/// If it is not an array of numbers in C order, or is larger.
pub fn dense(stream: impl std::io::Read, bytes_max: u64) -> Result<Dense, Error> {
    Dense::read(stream, bytes_max)
}

/// Reads the arrays with these names from a NumPy archive, of at most `bytes_max` bytes each.
///
/// # Errors
/// If it is not an archive, or an array is missing, is not of numbers in C order, or is larger.
pub fn arrays<const N: usize>(
    stream: impl std::io::Read + std::io::Seek,
    names: [&str; N],
    bytes_max: u64,
) -> Result<[Dense; N], Error> {
    npz::arrays(stream, names, bytes_max)
}

fn from_stream(stream: impl BufRead, format: Format, options: Options) -> Result<Edges, Error> {
    check(format, options)?;
    match format {
        Format::EdgeList => edge_list::edges(without_mark(stream)?, options),
        Format::MatrixMarket => matrix_market::edges(without_mark(stream)?, options),
        Format::WebGraph => webgraph::edges(without_mark(stream)?, options.vertices),
        Format::Npy | Format::Npz => npz::edges_of_index(&Matrix::read(stream)?, options),
    }
}

/// Refuses options that do not apply to a format.
fn check(format: Format, options: Options) -> Result<(), Error> {
    let refused = |what: &str, of: &str| {
        Err(Error::value(format!("{what} of a .{format} file, expected {of}")))
    };
    let has_numbers = [Format::EdgeList, Format::Npy, Format::Npz].contains(&format);
    if options.numbering != Numbering::FromZero && !has_numbers {
        return refused("other numbers of vertices", "an edge list or an edge index");
    }
    if options.orientation.is_some() && format != Format::Npz {
        return refused("an orientation", "an archive with indptr and indices");
    }
    if options.header != Header::Guessed && format != Format::EdgeList {
        return refused("a header", "an edge list");
    }
    Ok(())
}

/// Returns a text without the mark that some editors add before UTF-8.
fn without_mark(mut stream: impl BufRead) -> Result<impl BufRead, Error> {
    let mut start = Vec::new();
    let read = stream.by_ref().take(MARK.len() as u64).read_to_end(&mut start);
    read.map_err(|error| Error::io("cannot read", error))?;
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Err(Error::format("text in UTF-16, expected UTF-8".to_owned()));
    }
    if start == MARK {
        start.clear();
    }
    Ok(std::io::Cursor::new(start).chain(stream))
}
