//! Pipelines: crate `program`'s orders and clock, and where a chain of blocks is cut into stages.

mod cut;

pub use cut::{cut, cut_by};
pub use thinwire_program::pipeline::{Kind, Pass, Run, Schedule, Stage, Timeline, deal, simulate};
