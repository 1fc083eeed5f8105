//! Saved state of a coordinator.
//!
//! Law: the coordinator sends nothing that depends on a state before that state is saved. If the state
//! cannot be saved, the coordinator sends nothing and keeps trying to save, unless another coordinator
//! has taken over.

mod parts;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thinwire_link::durable;
use thinwire_member::Options;

use super::envelope::End;
use super::event::Event;
use crate::error::Error;
pub use parts::{Parts, STATE_BYTES_MAX};

/// Factor by which a restarted coordinator multiplies the heartbeat timeout when it waits for members, since
/// they reconnect with growing pauses.
pub const RETURN: u32 = 2;

/// Place that keeps the state of a coordinator.
pub trait Registry: Send {
    /// Returns the name of the place, for messages to people.
    fn place(&self) -> String;

    /// Returns the saved state, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&mut self) -> Result<Option<Vec<u8>>, Error>;

    /// Checks that states can be written. Leaves no files behind.
    ///
    /// # Errors
    /// If they cannot.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Replaces the state, so that it survives this process and a power cut.
    ///
    /// # Errors
    /// If the state cannot be written, or another process leads now.
    fn save(&mut self, bytes: &[u8]) -> Result<(), Unsaved>;

    /// Returns how the job has ended, if it has ended and processes still have to learn this from the
    /// registry.
    fn over(&self) -> Option<End> {
        None
    }

    /// Records that the job has ended.
    fn finish(&mut self, _end: End) {}

    /// Returns the time within which members find a coordinator that continues from this place.
    fn way(&self, options: &Options) -> Duration {
        RETURN * options.silence
    }
}

/// Reason why a state is not saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsaved {
    /// The state cannot be written at the moment.
    Cannot(String),
    /// Another process leads the job.
    Superseded,
}

/// Persistence of a coordinator's state, if it is saved at all.
#[derive(Default)]
pub struct Persistence {
    registry: Option<Box<dyn Registry>>,
    /// The last state could not be written.
    is_due: bool,
    is_superseded: bool,
}

impl Persistence {
    pub fn to(registry: impl Registry + 'static) -> Persistence {
        Persistence { registry: Some(Box::new(registry)), ..Persistence::default() }
    }

    /// Returns the saved state, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        self.registry.as_mut().map_or(Ok(None), |registry| registry.load())
    }

    /// Returns how the job has ended, if it has.
    pub fn over(&self) -> Option<End> {
        self.registry.as_ref().and_then(|registry| registry.over())
    }

    /// Checks that states can be written, before anything depends on one. Leaves no files behind.
    ///
    /// # Errors
    /// If states cannot be written.
    pub fn check(&self) -> Result<(), Error> {
        self.registry.as_ref().map_or(Ok(()), |registry| registry.check())
    }

    /// Returns whether the last state still has to be written.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns whether another coordinator has taken over, so that this one makes no more decisions.
    pub fn is_superseded(&self) -> bool {
        self.is_superseded
    }

    /// Saves a state.
    ///
    /// # Errors
    /// If the state cannot be saved. The error is an event for people the first time, and `None` for further
    /// failures in a row.
    pub fn save(&mut self, bytes: &[u8]) -> Result<(), Option<Event>> {
        let Some(registry) = &mut self.registry else { return Ok(()) };
        let was_due = std::mem::replace(&mut self.is_due, true);
        match registry.save(bytes) {
            Ok(()) => {
                self.is_due = false;
                Ok(())
            }
            Err(Unsaved::Cannot(reason)) => {
                Err((!was_due).then(|| Event::unsaved(&registry.place(), &reason)))
            }
            Err(Unsaved::Superseded) => {
                let was_superseded = std::mem::replace(&mut self.is_superseded, true);
                Err((!was_superseded).then(|| Event::deposed(&registry.place())))
            }
        }
    }

    /// Records that the job has ended.
    pub fn finish(&mut self, end: End) {
        self.registry.iter_mut().for_each(|registry| registry.finish(end));
    }

    /// Returns the time within which members find a coordinator that continues from the saved state.
    pub fn way(&self, options: &Options) -> Duration {
        self.registry.as_ref().map_or(Duration::ZERO, |registry| registry.way(options))
    }

    /// Returns the name of the place of the state, if there is one.
    pub fn place(&self) -> Option<String> {
        self.registry.as_ref().map(|registry| registry.place())
    }
}

const HINT: &str = "the folder of this file must exist and be writable";

/// File with the state of one coordinator at a time.
///
/// The coordinator holds a lock on another file, `FILE.lock`, for as long as it lives. On file systems
/// without locks, nothing checks that there is only one coordinator.
#[derive(Debug)]
pub struct FileRegistry {
    path: PathBuf,
    _lock: File,
}

impl FileRegistry {
    /// Takes the file at `path`, which need not exist.
    ///
    /// # Errors
    /// If another coordinator has the file, or its folder cannot be written.
    pub fn open(path: &Path) -> Result<FileRegistry, Error> {
        check(path)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let lock_path = path.with_file_name(name);
        let lock = File::options().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock
            .map_err(|error| Error::because(format!("writing {}", lock_path.display()), error))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let error = format!("another coordinator keeps its state in {}", path.display());
                Err(Error::invalid(error)
                    .with_hint("give each job a file of its own, or end the other coordinator"))
            }
            Ok(()) | Err(TryLockError::Error(_)) => {
                Ok(FileRegistry { path: path.to_owned(), _lock: lock })
            }
        }
    }
}

impl Registry for FileRegistry {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let path = &self.path;
        let cannot = |error| {
            Error::because(format!("reading the coordinator's state {}", path.display()), error)
        };
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot(error)),
            Ok(found) if found.len() > STATE_BYTES_MAX as u64 => {
                let found = found.len();
                return Err(Error::invalid(format!(
                    "{} has {found} bytes, expected at most {STATE_BYTES_MAX} of a coordinator's state",
                    path.display()
                )));
            }
            Ok(_) => {}
        }
        fs::read(path).map(Some).map_err(cannot)
    }

    fn check(&self) -> Result<(), Error> {
        check(&self.path)
    }

    fn save(&mut self, bytes: &[u8]) -> Result<(), Unsaved> {
        durable::replace(&self.path, bytes).map_err(|error| Unsaved::Cannot(error.to_string()))
    }
}

fn check(path: &Path) -> Result<(), Error> {
    durable::check(path).map_err(|error| {
        let action = format!("saving the coordinator's state in {}", path.display());
        Error::because(action, error).with_hint(HINT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_coordinator_at_a_time() {
        let folder = std::env::temp_dir().join(format!("thinwire-state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        let mut first = FileRegistry::open(&path).unwrap();
        assert_eq!(first.load().unwrap(), None);
        first.save(b"state").unwrap();
        let error = FileRegistry::open(&path).unwrap_err();
        let said = format!("another coordinator keeps its state in {}", path.display());
        assert_eq!(error.to_string(), said);
        drop(first);
        assert_eq!(FileRegistry::open(&path).unwrap().load().unwrap().unwrap(), b"state");
        fs::remove_dir_all(&folder).unwrap();
    }
}
