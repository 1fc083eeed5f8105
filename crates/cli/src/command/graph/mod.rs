//! `thinwire graph`: graph neural networks, and the files of their graphs.

mod arrays;
mod checkpoints;
mod generate;
mod import;
mod info;
mod partition;
mod served;
mod share;
mod supply;
mod task;
mod train;

use std::cell::RefCell;

use anyhow::Result;
use clap::Subcommand;
use thinwire_graph::Features;
use thinwire_report::figures;
use thinwire_rows::Format;

use crate::memory;

/// Memory that making a graph takes: places of each vertex's neighbours, twice while edges are sorted, its
/// label and its use.
const BYTES_PER_VERTEX: f64 = 24.0;
/// An edge as a pair, and in the list of its vertex.
const BYTES_PER_EDGE: f64 = 12.0;

/// Make files of graphs, look at them, cut them into parts, and train on them.
#[derive(Subcommand)]
pub enum What {
    /// Generate a graph, with features and labels where its model has them
    #[command(subcommand)]
    Generate(generate::Model),
    /// Import a graph from an edge list, Matrix Market, NumPy or WebGraph
    Import(import::Args),
    /// Show what a file has: vertices, edges, degrees, features
    Info(info::Args),
    /// Cut a graph into parts for ranks, and compare ways to do so
    Partition(partition::Args),
    /// Train a graph neural network: GraphSAGE, GCN or GAT
    Train(Box<train::Args>),
}

/// Refuses a graph that does not fit in memory while it is made.
///
/// # Errors
/// If it does not.
fn ensure_fits(vertices: u64, edges: f64, hint: &str) -> Result<()> {
    let bytes = BYTES_PER_VERTEX * vertices as f64 + BYTES_PER_EDGE * edges;
    let what = format!("a graph of {} vertices", figures::count(vertices));
    memory::ensure(bytes as u64, &what, hint)
}

/// Calls `write` with features of `columns` numbers per vertex, encoded in a format. `values` writes the
/// numbers of a vertex.
fn with_features<T>(
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

/// Makes, shows or trains on a file of a graph.
///
/// # Errors
/// If a file cannot be read or written, a rank is lost, or standard output is closed.
pub fn run(what: &What) -> Result<u8> {
    thinwire_graph::name_lost_pages();
    match what {
        What::Generate(model) => generate::run(model),
        What::Import(args) => import::run(args),
        What::Info(args) => info::run(args),
        What::Partition(args) => partition::run(args),
        What::Train(args) => train::run(args),
    }
}
