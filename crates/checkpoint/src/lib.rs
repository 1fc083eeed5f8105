//! Checkpoints of trainings and snapshots of servers: how they are committed, found, and kept from each other.
mod draft;
mod error;
mod manifest;
mod sealed;
mod store;

pub use draft::{Draft, clean, clean_store};
pub use error::{Error, Kind};
pub use manifest::{FileCheck, MANIFEST, Manifest, Record, Series};
pub use sealed::{Sealed, latest};
pub use store::{Location, PATIENCE, Start, Store, length_of, newest};
