//! Loader: samples the mini-batches of a graph, and reads their feature rows, ahead of the training.
//!
//! ```text
//! sampling threads (one batch each) ── ordered queue ── gathering thread ── ordered queue ── next()
//! ```
//!
//! Without a cache, sampling threads also read the rows, and there is no gathering thread.
//!
//! Batches arrive in the order of their [`Position`](thinwire_graph::Position) and are a pure function of it,
//! for any number of threads. Queues are bounded, buffers are reused, and dropping the [`Loader`] ends its
//! threads. Rows come from any [`Source`](thinwire_rows::Source), which may be in memory, in a file or
//! remote, with or without a cache.
//!
//! ```
//! use std::sync::Arc;
//!
//! use thinwire_graph::{Adjacency, Batches, Position, Sampling};
//! use thinwire_loader::{Features, Loader, Options};
//! use thinwire_rows::Frozen;
//!
//! let graph = Arc::new(Adjacency::from_edges(4, &[(1, 0), (2, 0), (3, 1), (0, 3)])?);
//! let batches = Batches::global(vec![0, 1, 3], 1, 2, 7)?;
//! let rows = Frozen::in_memory(vec![0, 10, 20, 30], 1)?;
//! let options = Options::new(Sampling::new(&[2, 2]), 0);
//! let mut loader = Loader::start(graph, batches, Features::direct(rows), options)?;
//! let batch = loader.next()?;
//! assert_eq!(batch.position(), Position { pass: 0, step: 0 });
//! let expected: Vec<u8> = batch.sample().vertices.iter().map(|vertex| 10 * *vertex as u8).collect();
//! assert_eq!(batch.rows(), expected);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod cache;
mod demand;
mod error;
mod features;
mod loader;
mod queue;
mod remote;
mod stored;

pub use batch::Batch;
pub use demand::{Demand, REQUEST_BYTES};
pub use error::{Error, Kind};
pub use features::{Features, Policy};
pub use loader::{Loader, Options};
pub use remote::{Part, Remote, RowService, SharedSource};
pub use stored::Stored;
