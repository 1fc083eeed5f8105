//! What comes out: a plan as a file, and as a report that says why.

mod file;
mod report;

pub use file::{PlanFile, StageFile, WayFile};
pub use report::{Sensitivity, report, sensitivities};
