//! State file of a coordinator.
//!
//! Law: nothing that depends on a state leaves the coordinator before that state is on disk. If it
//! cannot be written, the coordinator falls silent but goes on trying.

use std::fs;
use std::path::{Path, PathBuf};

use thinwire_link::durable;
use thinwire_member::SAVED_BYTES_MAX;

use super::event::Event;
use crate::error::Error;

/// File where a coordinator keeps its state, if it has one.
#[derive(Debug)]
pub struct Saving {
    path: Option<PathBuf>,
    /// The last state could not be written.
    is_due: bool,
}

impl Saving {
    pub fn new(path: Option<&Path>) -> Saving {
        Saving { path: path.map(Path::to_owned), is_due: false }
    }

    /// Returns the saved state, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(path) = &self.path else { return Ok(None) };
        let cannot = |error| {
            Error::because(format!("reading the coordinator's state {}", path.display()), error)
        };
        match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot(error)),
            Ok(found) if found.len() > SAVED_BYTES_MAX as u64 => {
                let found = found.len();
                return Err(Error::invalid(format!(
                    "{} has {found} bytes, expected at most {SAVED_BYTES_MAX} of a coordinator's state",
                    path.display()
                )));
            }
            Ok(_) => {}
        }
        fs::read(path).map(Some).map_err(cannot)
    }

    /// Whether the last state still has to be written.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Writes a state, so that it survives a power cut.
    ///
    /// # Errors
    /// An event for people if that has become impossible, none if it still is.
    pub fn save(&mut self, bytes: &[u8]) -> Result<(), Option<Event>> {
        let Some(path) = &self.path else { return Ok(()) };
        let was_due = self.is_due;
        match durable::replace(path, bytes) {
            Ok(()) => {
                self.is_due = false;
                Ok(())
            }
            Err(error) => {
                self.is_due = true;
                Err((!was_due).then(|| Event::unsaved(path, &error.to_string())))
            }
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}
