//! State file of a coordinator.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use thinwire_link::durable;

use super::{Registry, STATE_BYTES_MAX, Unsaved};
use crate::error::Error;

const HINT: &str = "its folder must exist and be writable";

/// File with the state of one coordinator at a time.
///
/// A lock on a file beside it, `FILE.lock`, is held by the coordinator for as long as it lives. File systems
/// without locks are trusted.
#[derive(Debug)]
pub struct FileRegistry {
    path: PathBuf,
    _lock: File,
}

impl FileRegistry {
    /// Takes the file at `path`, which need not exist.
    ///
    /// # Errors
    /// If another coordinator has it, or its folder cannot be written.
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
