//! Subcommands, one file each.

pub mod bench;
pub mod codec;
pub mod compare;
pub mod completions;
pub mod coordinator;
pub mod doctor;
pub mod graph;
pub mod man;
pub mod model;
pub mod plan;
pub mod report;
pub mod resize;
pub mod run;
pub mod sample;
pub mod server;
pub mod snapshot;
pub mod top;
pub mod train;
