//! Pipelines: the orders and the clock of crate `program`, and cutting a chain of blocks into stages.

mod cut;

pub use cut::{cut, cut_by};
pub use thinwire_program::pipeline::{Kind, Pass, Run, Schedule, Stage, Timeline, deal, simulate};
