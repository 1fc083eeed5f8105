//! Which part of a model runs on which device, and what travels between them.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod cost;
mod error;
pub mod output;
pub mod pipeline;
pub mod search;
pub mod stage;

pub use cluster::Cluster;
pub use error::{Error, Kind};
