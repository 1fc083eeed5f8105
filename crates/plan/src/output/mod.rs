//! Output: a plan as a file, and as a report that says why.

mod activations;
mod bounds;
mod codecs;
mod derived;
mod explain;
mod file;
mod least;
mod levels;
mod products;
mod report;
mod savings;
mod stages;
mod traffic;

pub use explain::explain;
pub use file::plan_file;
pub use levels::LevelTraffic;
pub use report::{NO_EXPERT, Sensitivity, describe, idle, price_report, report, sensitivities};
pub use savings::{recompute_text, zero_text};
pub use stages::stage_blocks;
pub use thinwire_program::file::{
    ActivationFile, CodecFile, DivisionFile, Numbers, PlanFile, StageFile, WayFile,
};
pub use thinwire_program::{counted, devices};
pub use traffic::{TensorTraffic, Traffic, TrafficKind, traffic};
