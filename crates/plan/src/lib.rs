//! Planning: which device computes which part of a model, and the communication between devices.
//!
//! A [`Cluster`] and a model become a plan: the number of stages, a mesh for each, the number of
//! micro-batches, and for every operator the axis that is cut on every dimension of the mesh. All of this
//! follows from the operators' axes, without a special case per kind of parallelism. The crate has no I/O and
//! no clock; [`search`] uses threads to evaluate candidates in parallel.
//!
//! ```
//! use thinwire_plan::search::{Planner, Settings};
//! use thinwire_plan::{Cluster, Error};
//!
//! let cluster = Cluster::parse(r#"
//!     [[device]]
//!     name = "small"
//!     tflops = 100
//!     memory_gib = 16
//!     memory_gbyte_per_s = 900
//!
//!     [[level]]
//!     name = "node"
//!     size = 4
//!     latency_us = 5
//!     gbit = 400
//! "#)?;
//! let mut planner = Planner::new(16, Settings::default(), |batch| {
//!     thinwire_model::named("mlp", batch, 1).map_err(|error| Error::from_model(&error))
//! });
//! let found = planner.plan(&cluster)?;
//! assert_eq!(found.best.candidate.stages * found.best.candidate.mesh.iter().product::<usize>(), 4);
//! assert!(found.bound_s <= found.best.seconds);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod cluster;
pub mod cost;
mod error;
pub mod pipeline;
pub mod report;
pub mod search;
pub mod stage;

pub use cluster::Cluster;
pub use error::{Error, Kind, TooLarge};
