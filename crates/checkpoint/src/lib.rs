//! Checkpoints of trainings and snapshots of servers: committing them, finding them, and keeping trainings
//! apart.
//!
//! A checkpoint is a folder such as `step-000123` with files and a `manifest.json`. The manifest is written
//! last, and has the length and checksum of every file. The writer's own data is a [`Record`] in the
//! [`Manifest`]. Processes write the files to a [`Draft`] in a [`Store`], which is a folder or a bucket of an
//! object store; [`Sealed`] reads them again.
//!
//! Further items are for a training and the folder or bucket of its checkpoints: [`FolderLock`] keeps
//! other trainings away, [`save`] runs the steps that all ranks take together, and [`save_last`] writes
//! the last checkpoint to another folder if its own is gone.
//!
//! Laws: a reader of a store finds a checkpoint as a whole or not at all; reading gives what was written, bit
//! for bit, or an error that names the damaged file.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use thinwire_checkpoint::{Draft, Location, Manifest, Record, Sealed, Series, latest};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Progress {
//!     loss: f64,
//! }
//!
//! impl Record for Progress {
//!     const FORMAT: u32 = 1;
//!     const SERIES: Series = Series::Steps;
//!
//!     fn check(&self) -> Result<(), String> {
//!         Ok(())
//!     }
//!
//!     fn is_file(name: &str) -> bool {
//!         ["manifest.json", "weights"].contains(&name)
//!     }
//! }
//!
//! let place = std::env::temp_dir().join(format!("thinwire-example-{}", std::process::id()));
//! let draft = Draft::create(&place, 123)?;
//! draft.write("weights", &[b"1.5 ", b"2.5"])?;
//! let files = draft.read_back(["weights".to_owned()])?;
//! draft.publish(123, Manifest::new(Progress { loss: 0.25 }, files))?;
//!
//! let newest = latest(&place)?.expect("it was published");
//! assert!(newest.ends_with("step-000123"));
//! let sealed: Sealed<Progress> = Sealed::open(Location::from(newest).store()?, "")?;
//! assert_eq!(sealed.manifest().record.loss, 0.25);
//! assert_eq!(sealed.read("weights")?, b"1.5 2.5");
//! # std::fs::remove_dir_all(place).unwrap();
//! # Ok::<(), thinwire_checkpoint::Error>(())
//! ```
#![forbid(unsafe_code)]

mod draft;
mod error;
mod lease;
mod location;
mod lock;
mod manifest;
mod rescue;
mod save;
mod sealed;
mod store;
#[cfg(test)]
mod testing;

pub use draft::{Draft, clean, clean_store};
pub use error::{Error, Kind};
pub use lease::Lease;
pub use location::{Location, PATIENCE};
pub use lock::{FolderLock, Held, Policy, await_places, mark};
pub use manifest::{FileCheck, MANIFEST, Manifest, Record, Series};
pub use rescue::{check_variables, save_between, save_last};
pub use save::{Saved, all_done, check_folder, check_origin, save};
pub use sealed::{Sealed, latest};
pub use store::{Start, Store, length_of, newest};
