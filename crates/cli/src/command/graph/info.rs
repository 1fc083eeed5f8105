//! `thinwire graph info`: shows the contents of a graph's file.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_graph::{Adjacency, Id, Ids, Split, Store};
use thinwire_report::Table;
use thinwire_report::figures::{binary, count, digits};

use crate::failure::hinted;
use crate::output::{print, print_json, print_lines};

/// Show what a file contains.
#[derive(clap::Args)]
pub struct Args {
    /// File of a graph
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Compare the whole file with its checksums
    #[arg(long)]
    verify: bool,
    /// Show the id of every vertex
    ///
    /// These are the ids that `thinwire graph import --relabel` keeps in the file.
    #[arg(long, conflicts_with = "verify")]
    ids: bool,
    /// One JSON object; with --ids, one per vertex
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
    /// Number of vertices of every type; empty if vertices have no types.
    types: Vec<u64>,
    features: Option<Features>,
    classes: Option<u32>,
    training: u64,
    validation: u64,
    test: u64,
    /// Number of vertices of every part; empty if there are no parts.
    parts: Vec<u32>,
    /// Kind of the vertices' ids, if the file has them: numbers or texts.
    ids: Option<&'static str>,
    /// Whether the file was compared with its checksums, and is undamaged.
    verified: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    vertex: u32,
    id: Value<'a>,
}

/// Id of a vertex.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Number(i64),
    Text(&'a str),
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

/// Shows the contents of a file.
///
/// # Errors
/// If the file is not a graph's, is damaged, or has no ids to show, or standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let store = Store::open(&args.file)?;
    if args.ids {
        return show_ids(args, &store);
    }
    if args.verify {
        store.verify()?;
    }
    let report = Report { verified: args.verify, ..report(&store) };
    store.ensure_unchanged()?;
    match args.json {
        true => print_json(&report)?,
        false => print(text(&report))?,
    }
    Ok(0)
}

fn show_ids(args: &Args, store: &Store) -> Result<u8> {
    let Some(ids) = store.ids() else {
        let error = anyhow!("{} has no ids of vertices", args.file.display());
        return Err(hinted(error, "thinwire graph import --relabel keeps them"));
    };
    let line = |vertex| {
        let id = match ids.get(vertex) {
            Id::Number(number) => Value::Number(number),
            Id::Text(text) => Value::Text(text),
        };
        Line { vertex, id }
    };
    let lines: Vec<Line<'_>> = (0..store.adjacency().vertices()).map(line).collect();
    print_lines(&lines, args.json.into(), ["vertex", "id"], |Line { vertex, id }| {
        let id = match id {
            Value::Number(number) => number.to_string(),
            // A line for each vertex, whatever is in its id.
            Value::Text(text) => text.escape_debug().to_string(),
        };
        [vertex.to_string(), id]
    })?;
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
        types: store.types().map(|(types, number)| counts(types, number)).unwrap_or_default(),
        features,
        classes: store.labels().map(|(_, classes)| classes),
        training: of(Split::Train),
        validation: of(Split::Validation),
        test: of(Split::Test),
        parts: store.bounds().windows(2).map(|ends| ends[1] - ends[0]).collect(),
        ids: store.ids().map(|ids| match ids {
            Ids::Numbers(_) => "numbers",
            Ids::Texts(_) => "texts",
        }),
        verified: false,
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
fn counts(types: &[u32], number: u32) -> Vec<u64> {
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
    if let Some(sort) = report.ids {
        row("ids", format!("{sort}, which --ids shows"));
    }
    if report.verified {
        row("checksums", "correct".to_owned());
    }
    for (part, vertices) in report.parts.iter().enumerate() {
        row(&format!("part {part}"), count(u64::from(*vertices)));
    }
    table
}
