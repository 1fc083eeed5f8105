//! What comes out: a plan as a file, and as a report that says why.

mod codecs;
mod compare;
mod explain;
mod file;
mod report;
mod robust;
mod traffic;
mod volume;

pub use compare::compare;
pub use explain::explain;
pub use file::{CodecFile, Numbers, PlanFile, StageFile, WayFile};
pub use report::{Sensitivity, describe, report, sensitivities};
pub use robust::robust_report;
pub use traffic::{Traffic, traffic};
pub use volume::{Volume, volumes};
