//! Report: a plan as a file, and as a text that explains it.

mod activations;
mod bounds;
mod codecs;
mod explain;
mod file;
mod graph_model;
mod least;
mod levels;
mod products;
mod savings;
mod stages;
mod text;
mod traffic;

pub use explain::explain;
pub use file::plan_file;
pub use levels::LevelTraffic;
pub use savings::{recompute_text, zero_text};
pub use stages::stage_blocks;
pub use text::{NO_EXPERT, Sensitivity, describe, idle, price_report, report, sensitivities};
pub use thinwire_program::file::{
    ActivationFile, CodecFile, DivisionFile, Numbers, PlanFile, StageFile, WayFile,
};
pub use thinwire_program::{counted, devices};
pub use traffic::{TensorTraffic, Traffic, TrafficKind, traffic};
