//! `thinwire graph`: files of graphs for graph neural networks.

mod features;
mod generate;
mod import;
mod info;
mod partition;
mod share;
mod supply;

use anyhow::Result;
use clap::Subcommand;

/// Make files of graphs, look at them, and cut them into parts.
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
}

/// Makes or shows a file of a graph.
///
/// # Errors
/// If a file cannot be read or written, or standard output is closed.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Generate(model) => generate::run(model),
        What::Import(args) => import::run(args),
        What::Info(args) => info::run(args),
        What::Partition(args) => partition::run(args),
    }
}
