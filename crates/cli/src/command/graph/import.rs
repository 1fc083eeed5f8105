//! `thinwire graph import`: graphs in the formats of others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use thinwire_graph::read::{self, Dtype, Matrix};
use thinwire_graph::{Contents, NO_LABEL, Split, write};
use thinwire_rows::Format;

use super::features::with_features;
use super::share;
use crate::failure::hinted;
use crate::figures::count;
use crate::file;
use crate::output::say;

/// Import a graph. An edge goes from the first vertex of a line to the second, and carries messages that way.
#[derive(clap::Args)]
pub struct Args {
    /// File to read, perhaps compressed: .txt .csv .tsv .edges .mtx .graph-txt .npy .npz, or these with .gz
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the file [default: by the end of its name]
    #[arg(long, value_name = "FORMAT")]
    from: Option<From>,
    /// Number of vertices [default: as the file says, or the highest vertex and those before it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..4_294_967_295))]
    vertices: Option<u32>,
    /// Columns of source and destination in an edge list, from 1 on [default: the only two]
    #[arg(long, value_name = "N,N", value_parser = parse_columns)]
    columns: Option<(u32, u32)>,
    /// Adds the other direction of every edge, and keeps one of equal edges
    #[arg(long)]
    symmetric: bool,
    /// Features: an array of NumPy with a row per vertex
    #[arg(long, value_name = "FILE.npy")]
    features: Option<PathBuf>,
    /// Format of features in the file: f32, f16 or int8
    #[arg(long, value_name = "FORMAT", default_value = "f32", requires = "features", value_parser = |text: &str| Format::parse(text))]
    format: Format,
    /// Labels: an array of NumPy with a class per vertex, -1 where a vertex has none
    #[arg(long, value_name = "FILE.npy")]
    labels: Option<PathBuf>,
    /// Uses of vertices: an array of NumPy with 0 for none, 1 training, 2 validation, 3 test
    #[arg(long, value_name = "FILE.npy", conflicts_with = "train")]
    split: Option<PathBuf>,
    /// Draws this share of vertices for training, and half of the others each for validation and test
    #[arg(long, value_name = "SHARE", value_parser = share::parse)]
    train: Option<f32>,
    /// Seed of --train
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Formats to read.
#[derive(Clone, Copy, ValueEnum)]
enum From {
    /// Two vertices per line; SNAP's text
    Edges,
    /// Matrix Market, coordinates
    Mtx,
    /// WebGraph's ASCII
    Webgraph,
    /// NumPy, two rows or columns of vertices
    Npy,
    /// NumPy or SciPy, compressed or coordinates
    Npz,
}

/// Reads two columns.
fn parse_columns(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    let pair = text.split_once(',').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    pair.filter(|(a, b)| a != b)
        .ok_or_else(|| format!("columns '{text}', expected two different ones such as 1,2"))
}

/// Checks that no file to read is the one to write.
fn ensure_other_file(args: &Args) -> Result<()> {
    let read =
        [Some(&args.input), args.features.as_ref(), args.labels.as_ref(), args.split.as_ref()];
    let target = args.output.canonicalize().ok();
    match read.into_iter().flatten().find(|it| target.is_some() && it.canonicalize().ok() == target)
    {
        Some(path) => bail!("--output is the file that is read, {}", path.display()),
        None => Ok(()),
    }
}

/// Reads a graph and what its vertices have, and writes them into one file.
///
/// # Errors
/// If a file cannot be read, is not in its format, or does not fit the graph.
pub fn run(args: &Args) -> Result<u8> {
    file::ensure_place(Some(&args.output), "the graph", "--output")?;
    ensure_other_file(args)?;
    let format = match args.from {
        Some(From::Edges) => read::Format::EdgeList,
        Some(From::Mtx) => read::Format::MatrixMarket,
        Some(From::Webgraph) => read::Format::WebGraph,
        Some(From::Npy) => read::Format::Npy,
        Some(From::Npz) => read::Format::Npz,
        None => read::Format::of(&args.input)?,
    };
    if args.columns.is_some() && format != read::Format::EdgeList {
        bail!(
            "--columns is for edge lists, not for {format} files such as {}",
            args.input.display()
        );
    }
    let options = read::Options { vertices: args.vertices, columns: args.columns };
    let mut graph = read::edges(&args.input, format, options)?.adjacency()?;
    if args.symmetric {
        graph = graph.symmetrized();
    }
    let vertices = graph.vertices();
    let labels = args.labels.as_deref().map(|path| labels(path, vertices)).transpose()?;
    let split = match (&args.split, args.train) {
        (Some(path), _) => Some(split(path, vertices)?),
        (None, Some(share)) => Some(share::split(vertices, share, args.seed)),
        (None, None) => None,
    };
    let (labels, split) = (labels.as_deref(), split.as_deref());
    let contents = Contents { graph: &graph, features: None, labels, split, parts: None };
    match &args.features {
        None => write(&args.output, &contents)?,
        Some(path) => {
            let matrix = matrix(path, vertices)?;
            ensure_held(path, &matrix, args.format)?;
            let columns = matrix.columns as u32;
            let values = |vertex: u32, values: &mut [f32]| {
                let first = vertex as usize * columns as usize;
                (first..).zip(values).for_each(|(at, value)| *value = matrix.real(at));
            };
            with_features((args.format, columns), &values, |features| {
                write(&args.output, &Contents { features: Some(features), ..contents })
            })?;
        }
    }
    let [vertices, edges] = [u64::from(vertices), graph.edges()].map(count);
    say(format!("wrote {}: {vertices} vertices, {edges} edges", args.output.display()));
    Ok(0)
}

/// Reads an array with a row of numbers per vertex.
fn matrix(path: &Path, vertices: u32) -> Result<Matrix> {
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

/// Checks that a format holds all numbers of an array.
fn ensure_held(path: &Path, matrix: &Matrix, format: Format) -> Result<()> {
    let is_held = |at: &usize| matrix.real(*at).abs() <= format.max();
    let Some(at) = (0..matrix.len()).find(|at| !is_held(at)) else { return Ok(()) };
    let (value, columns) = (matrix.real(at), matrix.columns as usize);
    let (path, row, column, most) = (path.display(), at / columns, at % columns, format.max());
    let error = anyhow!("{path}: {value} in row {row}, column {column}, from 0 on");
    match value.is_finite() {
        true => {
            Err(hinted(error.context(format!("{format} holds at most {most}")), "--format f32"))
        }
        false => Err(hinted(error, "replace what is missing or not finite by numbers")),
    }
}

/// Reads an array with one whole number per vertex.
fn column(path: &Path, vertices: u32) -> Result<Matrix> {
    let matrix = matrix(path, vertices)?;
    if matrix.columns != 1 || !matches!(matrix.dtype, Dtype::Int(_) | Dtype::Uint(_)) {
        let Matrix { dtype, columns, .. } = matrix;
        bail!(
            "{}: an array of {columns} {dtype} per vertex, expected one whole number",
            path.display()
        );
    }
    Ok(matrix)
}

fn labels(path: &Path, vertices: u32) -> Result<Vec<u32>> {
    let matrix = column(path, vertices)?;
    let label = |at: usize| {
        if matrix.real(at) == -1.0 {
            return Ok(NO_LABEL);
        }
        let label = matrix.whole(at).with_context(|| path.display().to_string())?;
        match u32::try_from(label) {
            Ok(label) if label < NO_LABEL => Ok(label),
            _ => {
                bail!("{}: label {label} of vertex {at}, expected below {NO_LABEL}", path.display())
            }
        }
    };
    (0..vertices as usize).map(label).collect()
}

fn split(path: &Path, vertices: u32) -> Result<Vec<Split>> {
    let matrix = column(path, vertices)?;
    let uses = |at: usize| {
        let number = matrix.whole(at).with_context(|| path.display().to_string())?;
        let split = u8::try_from(number).ok().and_then(Split::from_byte);
        let path = path.display();
        split.with_context(|| format!("{path}: use {number} of vertex {at}, expected 0 to 3"))
    };
    (0..vertices as usize).map(uses).collect()
}
