//! `thinwire graph import`: imports graphs in the formats of other programs.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;
use thinwire_graph::read::{self, Columns, Header, Numbering, Orientation, Weighting};
use thinwire_graph::{Adjacency, Contents, Ids, NO_LABEL, Weights, write};
use thinwire_report::figures::count;
use thinwire_rows::Format;

use super::{arrays, share};
use crate::output::say;
use crate::{file, memory};

/// Import a graph. An edge goes from the first vertex of a line to the second, and carries messages that way.
#[derive(clap::Args)]
pub struct Args {
    /// File to read
    ///
    /// .txt .csv .tsv .el .edges .mtx .graph-txt .npy, each optionally with .gz, or .npz.
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the file [default: by the end of its name]
    #[arg(long, value_name = "FORMAT")]
    from: Option<From>,
    /// Number of vertices [default: from the file]
    ///
    /// If the file does not contain it, the default covers all vertices up to the highest one in the file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..4_294_967_295))]
    vertices: Option<u32>,
    /// Columns of an edge list [default: its two columns]
    ///
    /// Columns of source, destination and optionally weight, counted from 1.
    #[arg(long, value_name = "N,N[,N]", value_parser = parse_columns)]
    columns: Option<Columns>,
    /// Whether the first line of an edge list names columns
    ///
    /// By default, a first line that begins with a letter counts as names.
    #[arg(long, value_name = "yes|no", hide_possible_values = true)]
    header: Option<Answer>,
    /// Number vertices in the order of their ids
    ///
    /// Vertices of an edge list or an edge index may have any integers or strings as ids; the file keeps them.
    #[arg(long, conflicts_with_all = ["vertices", "one_based"])]
    relabel: bool,
    /// Vertices of an edge list or an edge index are numbered from 1
    #[arg(long)]
    one_based: bool,
    /// Neighbours in an .npz file: in (CSC) or out (CSR)
    ///
    /// Needed if the file does not state its format. With in, indptr and indices list the in-neighbours of each
    /// vertex; with out, its out-neighbours.
    #[arg(long, value_name = "in|out", hide_possible_values = true)]
    orientation: Option<Orientation>,
    /// Leave out the weights of edges
    ///
    /// Applies to the weights of a matrix or an edge index.
    #[arg(long)]
    unweighted: bool,
    /// Add the other direction of every edge
    ///
    /// Of duplicate edges, the one with the largest weight is kept.
    #[arg(long)]
    symmetric: bool,
    /// Features: a NumPy array with a row per vertex
    #[arg(long, value_name = "FILE.npy")]
    features: Option<PathBuf>,
    /// Format of features in the file: f32, f16 or int8
    #[arg(long, value_name = "FORMAT", default_value = "f32", requires = "features", value_parser = |text: &str| Format::parse(text))]
    format: Format,
    /// Labels: a NumPy array with a class per vertex
    ///
    /// A label below 0 means that the vertex has none.
    #[arg(long, value_name = "FILE.npy")]
    labels: Option<PathBuf>,
    /// Types: a NumPy array with a number per vertex
    ///
    /// Types are numbered from 0.
    #[arg(long, value_name = "FILE.npy")]
    types: Option<PathBuf>,
    /// Uses: a NumPy array with a number per vertex
    ///
    /// 0 for none, 1 training, 2 validation, 3 test.
    #[arg(long, value_name = "FILE.npy", conflicts_with = "train")]
    split: Option<PathBuf>,
    /// Share of vertices that is drawn for training
    ///
    /// The others are split evenly between validation and test.
    #[arg(long, value_name = "SHARE", value_parser = share::parse)]
    train: Option<f32>,
    /// Seed of --train
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Formats to read.
#[derive(Clone, Copy, ValueEnum)]
enum From {
    /// Edge list with two vertices per line, as SNAP's files
    Edges,
    /// Matrix Market's coordinate format
    Mtx,
    /// WebGraph's ASCII format
    Webgraph,
    /// NumPy array with two rows or two columns of vertices
    Npy,
    /// SciPy's sparse matrix (CSR, CSC or COO), or NumPy archive with an edge_index
    Npz,
}

#[derive(Clone, Copy, ValueEnum)]
enum Answer {
    /// The first line names columns
    Yes,
    /// The first line is an edge
    No,
}

/// Parses two or three columns.
fn parse_columns(text: &str) -> Result<Columns, String> {
    let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
    let numbers: Vec<Option<u32>> = text.split(',').map(number).collect();
    let found = match numbers[..] {
        [Some(source), Some(destination)] => Some(Columns { source, destination, weight: None }),
        [Some(source), Some(destination), weight @ Some(_)] => {
            Some(Columns { source, destination, weight })
        }
        _ => None,
    };
    let is_proper = |it: &Columns| {
        it.source != it.destination && ![it.source, it.destination].map(Some).contains(&it.weight)
    };
    found.filter(is_proper).ok_or_else(|| {
        format!("columns '{text}', expected two or three different ones such as 1,2 or 1,2,3")
    })
}

/// Reads a graph and the values of its vertices, and writes them to one file.
///
/// # Errors
/// If a file cannot be read, has another format, or does not fit the graph.
pub fn run(args: &Args) -> Result<u8> {
    file::ensure_place(Some(&args.output), "the graph", "--output")?;
    let Args { features, labels, types, split, .. } = args;
    let arrays = [features, labels, types, split].map(Option::as_deref);
    let read = arrays.into_iter().flatten().chain([&*args.input]);
    file::ensure_other("--output", &args.output, read)?;
    let given = args.vertices.map_or(0, u64::from);
    memory::ensure_graph(given, 0.0, "number vertices from 0, without gaps")?;
    let (graph, weights, ids) = topology(args)?;
    let vertices = graph.vertices();
    let array = |path: &Option<PathBuf>, read: fn(&Path, u32) -> Result<Vec<u32>>| {
        path.as_deref().map(|path| read(path, vertices)).transpose()
    };
    let labels = array(&args.labels, arrays::labels)?;
    labels.iter().for_each(|labels| say_gaps(labels));
    let types = array(&args.types, arrays::types)?;
    let split = match (&args.split, args.train) {
        (Some(path), _) => Some(arrays::split(path, vertices)?),
        (None, Some(share)) => {
            let drawn = share::split(vertices, share, args.seed);
            Some(share::labelled(drawn, labels.as_deref()))
        }
        (None, None) => None,
    };
    let contents = Contents {
        weights: weights.as_ref(),
        types: types.as_deref(),
        labels: labels.as_deref(),
        split: split.as_deref(),
        ids: ids.as_ref(),
        ..Contents::new(&graph)
    };
    write_with_features(args, contents)?;
    let [vertices, edges] = [u64::from(vertices), graph.edges()].map(count);
    let weighted = if weights.is_some() { " with weights" } else { "" };
    let with_ids = if ids.is_some() { " with ids" } else { "" };
    let what = format!("{vertices} vertices{with_ids}, {edges} edges{weighted}");
    say(format!("wrote {}: {what}", args.output.display()));
    Ok(0)
}

/// Prints that most classes have no vertex: a network has an output for each number up to the largest.
fn say_gaps(labels: &[u32]) {
    let mut found: Vec<u32> = labels.iter().copied().filter(|label| *label != NO_LABEL).collect();
    found.sort_unstable();
    found.dedup();
    let classes = found.last().map_or(0, |last| u64::from(*last) + 1);
    if classes > 2 * found.len() as u64 {
        let (classes, found) = (count(classes), count(found.len() as u64));
        say(format!(
            "labels are of {classes} classes, but only {found} of these have a vertex: number classes from 0"
        ));
    }
}

/// Reads the edges of the file, their weights, and the ids of vertices.
fn topology(args: &Args) -> Result<(Adjacency, Option<Weights>, Option<Ids>)> {
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
    if args.unweighted && args.columns.is_some_and(|columns| columns.weight.is_some()) {
        bail!("--unweighted cannot be used with a column of weights in --columns");
    }
    let edges = read::edges(&args.input, format, options(args))?;
    if edges.seems_one_based && !args.one_based {
        say(
            "vertex 0 has no edges, and vertex 1 has: add --one-based if the file numbers vertices from 1",
        );
    }
    let (graph, weights) = edges.weighted()?;
    match (args.symmetric, weights) {
        (false, weights) => Ok((graph, weights, edges.ids)),
        (true, None) => Ok((graph.symmetrized(), None, edges.ids)),
        (true, Some(weights)) => {
            let (graph, weights) = graph.symmetrized_with(&weights)?;
            Ok((graph, Some(weights), edges.ids))
        }
    }
}

fn options(args: &Args) -> read::Options {
    read::Options {
        vertices: args.vertices,
        columns: args.columns,
        weights: if args.unweighted { Weighting::Drop } else { Weighting::Keep },
        numbering: match (args.relabel, args.one_based) {
            (true, _) => Numbering::Ids,
            (false, true) => Numbering::FromOne,
            (false, false) => Numbering::FromZero,
        },
        header: match args.header {
            Some(Answer::Yes) => Header::Present,
            Some(Answer::No) => Header::Absent,
            None => Header::Guessed,
        },
        orientation: args.orientation,
    }
}

/// Writes the file, including the features if given.
fn write_with_features(args: &Args, contents: Contents<'_>) -> Result<()> {
    let Some(path) = &args.features else { return Ok(write(&args.output, &contents)?) };
    let matrix = arrays::matrix(path, contents.graph.vertices())?;
    arrays::ensure_held(path, &matrix, args.format)?;
    let columns = matrix.columns as u32;
    let values = |vertex: u32, values: &mut [f32]| {
        let first = vertex as usize * columns as usize;
        (first..).zip(values).for_each(|(at, value)| *value = matrix.real(at));
    };
    arrays::with_features(args.format, columns, &values, |features| {
        write(&args.output, &Contents { features: Some(features), ..contents })
    })?;
    Ok(())
}
