//! The subcommands, one file each.

pub mod bench;
pub mod codec;
pub mod compare;
pub mod model;
pub mod plan;
pub mod run;
pub mod sample;
pub mod train;
