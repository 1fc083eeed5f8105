//! Report of a training run: one value that the table, the JSON output and report.html all show.

pub mod axis;
pub mod bars;
mod curves;
mod gantt;
mod html;
mod json;
mod page;
mod planned;
mod summary;
mod svg;
mod timeline;
mod values;

pub use gantt::{Bar, Row, gantt};
pub use html::{document, escape, header, legend, section, table};
pub use json::lines;
pub use page::page;
pub use summary::summary;
pub use svg::{drawing, rect, text};
pub use timeline::{PASSES, pass};
pub use values::{Bucket, Change, Floors, Passed, Planned, PlannedRank, Point, Report, Run, Split};
