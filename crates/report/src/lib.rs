//! Reports as text: figures with units, tables for terminals, and pages of HTML with drawings in SVG.
//!
//! Records of trainings and plans are turned into text; nothing here reads or writes a file. The pages
//! load nothing from elsewhere: they are readable offline, in dark mode and without scripts.
//!
//! ```
//! use thinwire_report::{Table, figures};
//!
//! let mut table = Table::new(["codec", "step"]);
//! table.row(["int8".to_owned(), figures::seconds(0.0421)]);
//! assert_eq!(table.to_string(), "codec     step\nint8   42.1 ms\n");
//! ```
#![forbid(unsafe_code)]

pub mod escaping;
pub mod figures;
mod gantt;
mod html;
pub mod plan;
mod svg;
mod table;
pub mod training;

pub use table::Table;
