//! What comes out: a plan as a file, and as a report that says why.

mod activations;
mod check;
mod codecs;
mod counted;
mod explain;
mod file;
mod least;
mod moved;
mod parameter;
mod product;
mod report;
mod spared;
mod stages;
mod traffic;

pub use activations::activation_text;
pub use counted::{counted, devices};
pub use explain::explain;
pub use file::{ActivationFile, CodecFile, DivisionFile, Numbers, PlanFile, StageFile, WayFile};
pub use moved::{Moved, MovedKind, MovedTensor, moved};
pub use report::{NO_EXPERT, Sensitivity, describe, idle, price_report, report, sensitivities};
pub use spared::{recompute_text, zero_text};
pub use stages::stage_blocks;
pub use traffic::{Traffic, traffic};
