//! The store in a directory that all ranks see: one file per key.
//!
//! A value is written to a temporary name and then linked to its own, so that a reader finds all
//! of it or nothing and the first writer wins. Whoever can write the directory is trusted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::{self, Store, VALUE_BYTES_MAX};
use crate::{Error, Kind, durable};

/// Polling interval of a waiting reader: directories on network file systems notify nobody.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A store in a directory.
#[derive(Clone, Debug)]
pub struct File {
    directory: PathBuf,
}

impl File {
    /// The store in `directory`, which is made if it is missing. Each job needs its own.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(directory: impl Into<PathBuf>) -> Result<File, Error> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(|error| failed("make", &directory, error))?;
        Ok(File { directory })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(key.replace('/', ","))
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path(key);
        match fs::metadata(&path) {
            Ok(found) if found.len() > VALUE_BYTES_MAX as u64 => {
                let context = format!("{} has {} bytes", path.display(), found.len());
                return Err(Error::new(Kind::Limit, context));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path, error)),
        }
        fs::read(&path).map(Some).map_err(|error| failed("read", &path, error))
    }
}

impl Store for File {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        store::check(key, value)?;
        let path = self.path(key);
        let temporary = durable::temporary(&self.directory, value)
            .map_err(|error| failed("write", &path, error))?;
        let linked = fs::hard_link(&temporary, &path);
        fs::remove_file(&temporary).map_err(|error| failed("remove", &temporary, error))?;
        match linked {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.read(key)? {
                Some(found) if found == value => Ok(()),
                found => Err(store::taken(key, &found.unwrap_or_default())),
            },
            Err(error) => Err(failed("write", &path, error)),
        }
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        store::check(key, &[])?;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(value) = self.read(key)? {
                return Ok(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(store::missing(key, timeout));
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

fn failed(verb: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format_args!("cannot {verb} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_through_a_planted_link() {
        let root = std::env::temp_dir().join(format!("thinwire-store-{}", std::process::id()));
        let (victim, store) = (root.join("victim"), File::new(root.join("store")).unwrap());
        fs::write(&victim, "kept").unwrap();
        // Where an earlier version wrote first: its process and a number.
        for number in 0..20 {
            let planted = root.join(format!("store/.{}.{number}", std::process::id()));
            std::os::unix::fs::symlink(&victim, planted).unwrap();
        }
        store.set("key", b"value").unwrap();
        assert_eq!(store.get("key", Duration::ZERO).unwrap(), b"value");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        fs::remove_dir_all(&root).unwrap();
    }
}
