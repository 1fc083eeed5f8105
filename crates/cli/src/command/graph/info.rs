//! `thinwire graph info`: what a file of a graph has.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use thinwire_graph::{Adjacency, Split, Store};

use crate::figures::{binary, count, digits};
use crate::output::{print, print_json};
use crate::table::Table;

/// Show what a file has.
#[derive(clap::Args)]
pub struct Args {
    /// File of a graph
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    vertices: u32,
    edges: u64,
    degree_mean: f64,
    degree_median: u64,
    degree_max: u64,
    /// Vertices without in-edges.
    sources: u64,
    /// Smallest, mean and largest weight of an edge.
    weights: Option<Spread>,
    /// Vertices of every type; none if vertices have no types.
    types: Vec<u64>,
    features: Option<Features>,
    classes: Option<u32>,
    training: u64,
    validation: u64,
    test: u64,
    /// Vertices of every part; none if there are no parts.
    parts: Vec<u32>,
}

#[derive(Serialize)]
struct Spread {
    min: f32,
    mean: f64,
    max: f32,
}

#[derive(Serialize)]
struct Features {
    format: String,
    columns: u32,
    bytes: u64,
}

/// Shows a file.
///
/// # Errors
/// If it is no file of a graph, or standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let store = Store::open(&args.file)?;
    let report = report(&store);
    match args.json {
        true => print_json(&report)?,
        false => print(text(&report))?,
    }
    Ok(0)
}

fn report(store: &Store) -> Report {
    let graph = store.adjacency();
    let degrees = sorted_degrees(graph);
    let of = |split| store.count_of(split);
    let features = store.features().map(|rows| Features {
        bytes: u64::from(rows.width) * u64::from(graph.vertices()),
        format: rows.format,
        columns: rows.columns,
    });
    Report {
        vertices: graph.vertices(),
        edges: graph.edges(),
        degree_mean: graph.edges() as f64 / f64::from(graph.vertices().max(1)),
        degree_median: degrees.get(degrees.len() / 2).copied().unwrap_or(0),
        degree_max: degrees.last().copied().unwrap_or(0),
        sources: degrees.partition_point(|degree| *degree == 0) as u64,
        weights: store.weights().map(|weights| spread(weights.values())),
        types: store.types().map(counts).unwrap_or_default(),
        features,
        classes: store.labels().map(|(_, classes)| classes),
        training: of(Split::Train),
        validation: of(Split::Validation),
        test: of(Split::Test),
        parts: store.bounds().windows(2).map(|ends| ends[1] - ends[0]).collect(),
    }
}

fn sorted_degrees(graph: &Adjacency) -> Vec<u64> {
    let mut degrees: Vec<u64> = graph.offsets().windows(2).map(|ends| ends[1] - ends[0]).collect();
    degrees.sort_unstable();
    degrees
}

fn spread(weights: &[f32]) -> Spread {
    let mean = weights.iter().copied().map(f64::from).sum::<f64>() / weights.len().max(1) as f64;
    let min = weights.iter().copied().reduce(f32::min).unwrap_or(0.0);
    Spread { min, mean, max: weights.iter().copied().fold(0.0, f32::max) }
}

/// Counts the vertices of every type.
fn counts((types, number): (&[u32], u32)) -> Vec<u64> {
    let mut counts = vec![0; number as usize];
    types.iter().for_each(|it| counts[*it as usize] += 1);
    counts
}

fn text(report: &Report) -> Table {
    let mut table = Table::new(["vertices".to_owned(), count(u64::from(report.vertices))]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("edges", count(report.edges));
    row("mean in-degree", digits(report.degree_mean));
    row("median in-degree", count(report.degree_median));
    row("largest in-degree", count(report.degree_max));
    row("without in-edges", count(report.sources));
    if let Some(Spread { min, mean, max }) = &report.weights {
        row("weights", format!("{min} to {max}, mean {}", digits(*mean)));
    }
    if let Some(Features { format, columns, bytes }) = &report.features {
        row("features", format!("{columns} {format}, {}", binary(*bytes as f64)));
    }
    if let Some(classes) = report.classes {
        row("classes", count(u64::from(classes)));
    }
    row("training vertices", count(report.training));
    row("validation vertices", count(report.validation));
    row("test vertices", count(report.test));
    for (number, vertices) in report.types.iter().enumerate() {
        row(&format!("vertices of type {number}"), count(*vertices));
    }
    for (part, vertices) in report.parts.iter().enumerate() {
        row(&format!("part {part}"), count(u64::from(*vertices)));
    }
    table
}
