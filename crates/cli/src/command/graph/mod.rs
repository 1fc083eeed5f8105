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

use anyhow::Result;
use clap::Subcommand;

/// Make files of graphs, look at them, cut them into parts, and train on them.
#[derive(Subcommand)]
pub enum What {
    /// Generate a graph, with features and labels where its model has them
    #[command(subcommand)]
    Generate(generate::Model),
    /// Import a graph from an edge list, Matrix Market, NumPy or WebGraph
    Import(import::Args),
    /// Show what a file contains: vertices, edges, degrees, features
    Info(info::Args),
    /// Cut a graph into parts for ranks, and compare methods
    Partition(partition::Args),
    /// Train a graph neural network: GraphSAGE, GCN or GAT
    Train(Box<train::Args>),
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
