//! The store in a directory that all ranks see: one file per key.
//!
//! A value is written to a temporary name and then linked to its own, so that a reader finds all
//! of it or nothing and the first writer wins. Whoever can write the directory is trusted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::{self, Store, VALUE_BYTES_MAX};
use crate::{Error, Kind};

/// How often a waiting reader looks: directories on network file systems tell nobody.
const LOOK_EVERY: Duration = Duration::from_millis(10);

static TEMPORARY: AtomicU64 = AtomicU64::new(0);

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
        let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!(".{}.{number}", process::id()));
        fs::write(&temporary, value).map_err(|error| failed("write", &temporary, error))?;
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
