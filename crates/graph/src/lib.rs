//! Graphs for training graph neural networks.
//!
//! | | |
//! |---|---|
//! | [`Adjacency`] | in-neighbours of every vertex, in compressed sparse columns |
//! | [`Sampler`], [`Sample`] | neighbour sampling: the blocks of a mini-batch |
//!
//! ```
//! use thinwire_graph::Adjacency;
//!
//! let graph = Adjacency::from_edges(3, &[(0, 2), (1, 2), (2, 0)])?;
//! assert_eq!(graph.neighbors(2), [0, 1]);
//! assert_eq!(graph.transpose().neighbors(2), [0]);
//! # Ok::<(), thinwire_graph::Error>(())
//! ```
#![forbid(unsafe_code)]

mod adjacency;
mod error;
mod sample;

pub use adjacency::Adjacency;
pub use error::{Error, Kind};
pub use sample::{Block, Draw, FanOut, Frontier, Sample, Sampler, Sampling, Weights};
