//! `thinwire graph generate`: graphs of known models.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use thinwire_graph::generate::{Blocks, Rmat, barabasi_albert};
use thinwire_graph::{Adjacency, Contents, write};
use thinwire_report::figures::count;
use thinwire_rows::Format;

use super::{arrays, share};
use crate::output::say;
use crate::{file, memory};

/// Hint for a graph that does not fit in memory.
const FEWER: &str = "give fewer vertices or edges";

/// Generate a graph. The same flags give the same graph, on any number of threads.
#[derive(Subcommand)]
pub enum Model {
    /// R-MAT: skewed degrees in both directions, as in social networks
    Rmat(RmatArgs),
    /// Stochastic block model: blocks of vertices that have more edges within than between, with features
    /// and labels of known accuracy
    Blocks(BlockArgs),
    /// Barabási and Albert's preferential attachment, in both directions
    Attachment(AttachmentArgs),
}

/// Flags of all models.
#[derive(clap::Args)]
pub struct Common {
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Share of vertices to train on
    ///
    /// The others are split evenly between validation and test.
    #[arg(long, value_name = "SHARE", default_value = "0.1", value_parser = share::parse)]
    train: f32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Flags of R-MAT.
#[derive(clap::Args)]
pub struct RmatArgs {
    /// Logarithm of the number of vertices: 20 for a million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=30))]
    scale: u32,
    /// Edges per vertex
    #[arg(long, value_name = "N", default_value_t = 16)]
    degree: u32,
    #[command(flatten)]
    common: Common,
}

/// Flags of the stochastic block model.
#[derive(clap::Args)]
pub struct BlockArgs {
    /// Number of vertices
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    vertices: u32,
    /// Number of blocks; each is a class
    #[arg(long, value_name = "N", default_value_t = 4)]
    blocks: u32,
    /// Mean number of neighbours in a vertex's own block
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    within: f64,
    /// Mean number of neighbours in other blocks
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    between: f64,
    /// Number of features per vertex
    ///
    /// Features beyond the number of blocks are noise; with fewer features than blocks, the last blocks look alike.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    columns: u32,
    /// Standard deviation of features around the centre of their block
    #[arg(long, value_name = "SIGMA", default_value_t = 1.0, value_parser = parse_deviation)]
    noise: f32,
    /// Format of features: f32, f16 or int8
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = |text: &str| Format::parse(text))]
    format: Format,
    #[command(flatten)]
    common: Common,
}

/// Flags of preferential attachment.
#[derive(clap::Args)]
pub struct AttachmentArgs {
    /// Number of vertices
    #[arg(long, value_name = "N")]
    vertices: u32,
    /// Edges from each vertex to earlier ones
    #[arg(long, value_name = "N", default_value_t = 8)]
    degree: u32,
    #[command(flatten)]
    common: Common,
}

/// Parses a standard deviation.
fn parse_deviation(text: &str) -> Result<f32, String> {
    let parsed = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    parsed.ok_or_else(|| "expected a finite number of 0 or more".to_owned())
}

/// Generates a graph and writes it.
///
/// # Errors
/// If a number is out of its range, or the file cannot be written.
pub fn run(model: &Model) -> Result<u8> {
    match model {
        Model::Rmat(RmatArgs { scale, degree, common }) => {
            ensure_output(common)?;
            let vertices = 1_u64 << scale;
            memory::ensure_graph(vertices, vertices as f64 * f64::from(*degree), FEWER)?;
            let chances = Rmat::GRAPH500;
            let rmat = Rmat { scale: *scale, degree: *degree, chances, seed: common.seed };
            write_topology(&rmat.graph()?, common)
        }
        Model::Attachment(AttachmentArgs { vertices, degree, common }) => {
            ensure_output(common)?;
            let edges = 2.0 * f64::from(*vertices) * f64::from(*degree);
            memory::ensure_graph(u64::from(*vertices), edges, FEWER)?;
            write_topology(&barabasi_albert(*vertices, *degree, common.seed)?, common)
        }
        Model::Blocks(args) => {
            ensure_output(&args.common)?;
            let vertices = u64::from(args.vertices);
            let edges = vertices as f64 * (args.within + args.between);
            memory::ensure_graph(vertices, edges, FEWER)?;
            write_blocks(args)
        }
    }
}

fn ensure_output(common: &Common) -> Result<()> {
    file::ensure_place(Some(&common.output), "the graph", "--output")
}

fn write_topology(graph: &Adjacency, common: &Common) -> Result<u8> {
    let split = share::split(graph.vertices(), common.train, common.seed);
    let contents = Contents { split: Some(&split), ..Contents::new(graph) };
    write(&common.output, &contents)?;
    tell(graph, common);
    Ok(0)
}

fn write_blocks(args: &BlockArgs) -> Result<u8> {
    let BlockArgs { vertices, blocks, within, between, noise, .. } = *args;
    let common = &args.common;
    let model = Blocks {
        vertices,
        blocks,
        degree_within: within,
        degree_between: between,
        noise,
        seed: common.seed,
    };
    let graph = model.graph()?;
    let labels: Vec<u32> = (0..vertices).map(|vertex| model.label(vertex)).collect();
    let split = share::split(vertices, common.train, common.seed);
    let values = |vertex: u32, columns: &mut [f32]| model.features(vertex, columns);
    arrays::with_features(args.format, args.columns, &values, |features| {
        let contents = Contents {
            features: (args.columns > 0).then_some(features),
            labels: Some(&labels),
            split: Some(&split),
            ..Contents::new(&graph)
        };
        write(&common.output, &contents)
    })?;
    tell(&graph, common);
    let accuracy = 100.0 * model.accuracy_of_features(args.columns);
    say(format!("best accuracy by features alone: {accuracy:.1} %"));
    Ok(0)
}

fn tell(graph: &Adjacency, common: &Common) {
    let [vertices, edges] = [u64::from(graph.vertices()), graph.edges()].map(count);
    say(format!("wrote {}: {vertices} vertices, {edges} edges", common.output.display()));
}
