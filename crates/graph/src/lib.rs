//! Graphs for training graph neural networks.
//!
//! | | |
//! |---|---|
//! | [`Adjacency`] | in-neighbours of every vertex, in compressed sparse columns |
//! | [`Sampler`], [`Sample`] | neighbour sampling: the blocks of a mini-batch |
//! | [`Batches`] | training vertices, divided over passes, steps and ranks |
//! | [`Store`], [`write()`] | a graph with features, labels and a split in a file that ranks map and share |
//! | [`read`] | graphs in the formats of other programs: edge lists, Matrix Market, NumPy, WebGraph |
//! | [`generate`] | R-MAT, stochastic blocks, preferential attachment |
//! | [`partition()`](partition::partition) | parts for ranks, and their costs |
//!
//! ```
//! use thinwire_graph::Adjacency;
//!
//! let graph = Adjacency::from_edges(3, &[(0, 2), (1, 2), (2, 0)])?;
//! assert_eq!(graph.neighbors(2), [0, 1]);
//! assert_eq!(graph.transpose().neighbors(2), [0]);
//! # Ok::<(), thinwire_graph::Error>(())
//! ```
#![deny(unsafe_code)]

mod adjacency;
mod array;
mod batches;
mod error;
pub mod generate;
mod lists;
pub mod partition;
pub mod read;
mod sample;
mod store;

pub use adjacency::Adjacency;
pub use batches::{Batches, Pass, Position};
pub use error::{Error, Kind};
pub use sample::{Block, Draw, FanOut, Frontier, Sample, Sampler, Sampling, Weights};
pub use store::{
    Contents, FeatureRows, Features, Id, Ids, NO_LABEL, Split, Store, TYPES_MAX, file_length,
    name_lost_pages, write,
};
