//! What comes out: a plan as a file, and as a report that says why.

mod codecs;
mod compare;
mod file;
mod report;

pub use compare::compare;
pub use file::{CodecFile, PlanFile, StageFile, WayFile};
pub use report::{Sensitivity, report, sensitivities};
