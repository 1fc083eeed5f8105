//! `thinwire graph partition`: divides a graph among ranks, and shows the costs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_graph::partition::{Method, Options, Parts, Relabelling, Report, choose, partition};
use thinwire_graph::{Contents, Features, Split, Store, write};
use thinwire_report::figures::{count, seconds};

use super::supply;
use crate::file;
use crate::output::{Format, print_lines, say};

/// Cut a graph into parts for ranks. Prints the cost of every method.
#[derive(clap::Args)]
pub struct Args {
    /// File of a graph, with training vertices
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of parts: ranks of the training
    #[arg(long, value_name = "N")]
    parts: u32,
    /// Hops of a batch: layers of the model
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=64))]
    hops: u32,
    /// Method, such as fennel or metis
    ///
    /// hash, ranges, ldg, fennel, pagraph, metis; auto tries all of them and, among those with balanced training
    /// vertices, takes the one with the least redundancy.
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = parse)]
    method: Choice,
    /// Largest part, relative to the mean
    #[arg(long, value_name = "RATIO", default_value_t = 1.02)]
    balance: f64,
    /// Seed of random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// File for the graph with vertices numbered by part
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON object per method, and per way to get features
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    supply: supply::Args,
}

/// Methods to try.
#[derive(Clone, Copy)]
enum Choice {
    Auto,
    One(Method),
}

#[derive(Serialize)]
struct Line {
    method: String,
    /// Number of vertices of all closures, divided by the number of vertices of their union.
    redundancy: f64,
    /// Largest part of training vertices, of vertices and of closures, each relative to the mean.
    training_balance: f64,
    vertex_balance: f64,
    closure_balance: f64,
    cut_edges: u64,
    remote_rows: u64,
    seconds: f64,
    chosen: bool,
}

/// Divides a graph into parts.
///
/// # Errors
/// If the file cannot be read or written, has no training vertices, or has too few vertices for the parts.
pub fn run(args: &Args) -> Result<u8> {
    file::ensure_place(args.output.as_deref(), "the graph", "--output")?;
    let store = Store::open(&args.file)?;
    let training = store.vertices_of(Split::Train);
    let Args { parts, seed, .. } = *args;
    let format = Format::from(args.json);
    let hops = match args.supply.fan_outs.len() {
        0 => args.hops,
        hops => hops as u32,
    };
    let options = Options { parts, hops, balance_max: args.balance, seed };
    let methods = match args.method {
        Choice::Auto => Method::all(),
        Choice::One(method) => vec![method],
    };
    let (mut lines, mut reports, mut made) = (Vec::new(), Vec::new(), Vec::new());
    for method in methods {
        let start = Instant::now();
        let parts = partition(store.adjacency(), &training, method, &options)?;
        let seconds = start.elapsed().as_secs_f64();
        let report = Report::new(store.adjacency(), &training, &parts, hops);
        lines.push(line(method, &report, seconds));
        reports.push(report);
        made.push(parts);
    }
    let best = choose(&reports, args.balance).ok_or_else(|| anyhow!("no method"))?;
    lines[best].chosen = true;
    print(&lines, format)?;
    tell_balance(&lines, args.balance);
    if !args.supply.fan_outs.is_empty() {
        supply::run(&args.supply, &store, &made[best], &reports[best], seed, format)?;
    }
    if let Some(path) = &args.output {
        write_parts(path, &store, &made[best])?;
        say(format!("wrote {}: {parts} parts by {}", path.display(), lines[best].method));
    }
    Ok(0)
}

fn parse(text: &str) -> Result<Choice, String> {
    let methods = Method::all();
    match methods.iter().find(|method| method.to_string() == text) {
        Some(method) => Ok(Choice::One(*method)),
        None if text == "auto" => Ok(Choice::Auto),
        None => {
            let names: Vec<String> = methods.iter().map(Method::to_string).collect();
            Err(format!("method '{text}', expected auto, {}", names.join(", ")))
        }
    }
}

fn line(method: Method, report: &Report, seconds: f64) -> Line {
    Line {
        method: method.to_string(),
        redundancy: report.redundancy(),
        training_balance: report.training_balance(),
        vertex_balance: report.vertex_balance(),
        closure_balance: report.closure_balance(),
        cut_edges: report.cut,
        remote_rows: report.remote,
        seconds,
        chosen: false,
    }
}

fn print(lines: &[Line], format: Format) -> Result<()> {
    let header = [
        "method",
        "redundancy",
        "training",
        "vertices",
        "closures",
        "cut edges",
        "remote rows",
        "time",
        "",
    ];
    print_lines(lines, format, header, |line| {
        [
            line.method.clone(),
            format!("{:.3}", line.redundancy),
            format!("{:.3}", line.training_balance),
            format!("{:.3}", line.vertex_balance),
            format!("{:.3}", line.closure_balance),
            count(line.cut_edges),
            count(line.remote_rows),
            seconds(line.seconds),
            if line.chosen { "chosen".to_owned() } else { String::new() },
        ]
    })
}

/// Prints a notice if no method stayed within the bound of balance.
fn tell_balance(lines: &[Line], most: f64) {
    let Some(chosen) = lines.iter().find(|line| line.chosen && line.training_balance > most) else {
        return;
    };
    let found =
        format!("{} has {:.3}, expected at most {most}", chosen.method, chosen.training_balance);
    match lines.len() {
        1 => say(format!("balance of training vertices: {found}")),
        _ => say(format!("no method is within --balance; the closest, {found}")),
    }
}

/// Writes the graph with its vertices renumbered by part.
fn write_parts(path: &Path, store: &Store, parts: &Parts) -> Result<()> {
    let numbers = Relabelling::new(parts);
    let graph = numbers.graph(store.adjacency());
    let old = |vertex: u32| numbers.old[vertex as usize];
    let moved =
        |values: &[u32]| numbers.old.iter().map(|vertex| values[*vertex as usize]).collect();
    let labels: Option<Vec<u32>> = store.labels().map(|(labels, _)| moved(labels));
    let types: Option<Vec<u32>> = store.types().map(|(types, _)| moved(types));
    let weights = store.weights().map(|weights| numbers.weights(store.adjacency(), weights));
    let split: Option<Vec<Split>> = store
        .split()
        .map(|split| numbers.old.iter().map(|vertex| split[*vertex as usize]).collect());
    let rows = store.features();
    let row = |vertex: u32, row: &mut [u8]| row.copy_from_slice(store.row(old(vertex)));
    let features = rows.as_ref().map(|rows| Features {
        format: &rows.format,
        columns: rows.columns,
        width: rows.width,
        row: &row,
    });
    // Of a graph that was partitioned before, the first numbers are kept.
    let origins: Vec<u32> = match store.origins() {
        [] => numbers.old.clone(),
        first => moved(first),
    };
    let ids = store.ids().map(|ids| ids.of(&numbers.old));
    let contents = Contents {
        graph: &graph,
        weights: weights.as_ref(),
        types: types.as_deref(),
        features,
        labels: labels.as_deref(),
        split: split.as_deref(),
        parts: Some((&numbers.bounds, &origins)),
        ids: ids.as_ref(),
    };
    write(path, &contents)?;
    Ok(())
}
