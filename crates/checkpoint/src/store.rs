//! Places that all processes of a job share, where snapshots and checkpoints are kept: a folder, or a bucket of an
//! object store.
//!
//! Law: whoever lists a store finds a checkpoint whole or not at all; two jobs that publish snapshots at the same
//! moment get different numbers.

#[cfg(feature = "s3")]
mod bucket;
mod folder;

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::manifest::{MANIFEST, Series};
use folder::Folder;
pub use folder::length_of;

const SCHEME: &str = "s3://";
/// Longest time for a request to a bucket with all its attempts, unless somebody says another one.
const REQUEST: Duration = Duration::from_secs(90);
/// Longest time for a request to a bucket that holds up a training, without that for the bytes that it sends: a
/// launcher waits for ranks about three times as long after a signal.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time for a request that checks whether a place can be written.
const CHECK: Duration = Duration::from_secs(20);

/// Place of snapshots or checkpoints, as text: the path of a folder, or `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Folder that all processes share.
    Folder(PathBuf),
    /// Bucket of an object store and the beginning of its objects' names, without the scheme.
    Bucket(String),
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Location {
        match path.to_str().and_then(|text| text.strip_prefix(SCHEME)) {
            Some(bucket) => Location::Bucket(bucket.trim_matches('/').to_owned()),
            None => Location::Folder(path),
        }
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Location {
        path.to_owned().into()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Folder(path) => path.display().fmt(f),
            Location::Bucket(bucket) => write!(f, "{SCHEME}{bucket}"),
        }
    }
}

impl Location {
    /// Checks that `what`, such as snapshots, can be written here, and leaves nothing behind but the folder.
    ///
    /// # Errors
    /// If nothing can be written, or a bucket's endpoint or credentials are missing.
    pub fn check(&self, what: &str) -> Result<(), Error> {
        let doing = format!("cannot write {what} to {self}");
        self.store_within(CHECK)?.check().map_err(|error| error.context(&doing))
    }

    /// Returns the place with the address of its object store, if it is in one.
    pub fn address(&self) -> String {
        match self {
            Location::Folder(_) => self.to_string(),
            Location::Bucket(_) => format!("{self} at {}", endpoint(|name| env::var(name).ok())),
        }
    }

    /// Opens the store. A bucket is reached as the usual variables of the environment say.
    ///
    /// # Errors
    /// If a variable is missing, or this build has no object stores.
    pub fn store(&self) -> Result<Arc<dyn Store>, Error> {
        self.store_within(REQUEST)
    }

    /// Opens the store as [`Location::store`] does. A request to a bucket fails after about `patience`, and the time
    /// for the bytes that it sends: with all attempts, and wherever the object store is silent for so long.
    ///
    /// # Errors
    /// If a variable is missing, or this build has no object stores.
    pub fn store_within(&self, patience: Duration) -> Result<Arc<dyn Store>, Error> {
        self.store_with(|name| env::var(name).ok(), patience)
    }

    /// Opens the store as [`Location::store_within`] does, with these variables in the place of the environment's.
    ///
    /// # Errors
    /// If a variable is missing, or this build has no object stores.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables))]
    pub fn store_with(
        &self,
        variables: impl Fn(&str) -> Option<String>,
        patience: Duration,
    ) -> Result<Arc<dyn Store>, Error> {
        match self {
            Location::Folder(path) => Ok(Arc::new(Folder(path.clone()))),
            #[cfg(feature = "s3")]
            Location::Bucket(bucket) => Ok(Arc::new(bucket::open(bucket, variables, patience)?)),
            #[cfg(not(feature = "s3"))]
            Location::Bucket(_) => Err(Error::new(
                crate::error::Kind::Invalid,
                format!(
                    "{self}: this build of thinwire reaches no object store, \
                         cargo build --release --features s3 makes one that does"
                ),
            )),
        }
    }

    /// Splits the last part off the name in a bucket.
    pub fn split(&self) -> Option<(Location, String)> {
        let Location::Bucket(bucket) = self else { return None };
        let (parent, name) = bucket.rsplit_once('/')?;
        Some((Location::Bucket(parent.to_owned()), name.to_owned()))
    }
}

/// How a draft begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Its folder is made anew by one process, before the others write to it.
    Alone,
    /// Every process makes the folder, unless another one has.
    Shared,
}

/// Store of snapshots or checkpoints. Files are named by a folder and a name in it. Errors name the file.
pub trait Store: fmt::Debug + Send + Sync {
    /// Checks that a file can be written.
    ///
    /// # Errors
    /// If it cannot.
    fn check(&self) -> Result<(), Error>;

    /// Returns whether a draft has a folder of its own that is renamed in the end. Otherwise its files stay, and the
    /// manifest names their folder.
    fn renames(&self) -> bool;

    /// Begins a draft in this folder.
    ///
    /// # Errors
    /// If the folder cannot be made.
    fn begin(&self, draft: &str, start: Start) -> Result<(), Error>;

    /// Writes a new file; returns whether there was none of its name.
    ///
    /// # Errors
    /// If it cannot be written.
    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, Error>;

    /// Writes a new file from consecutive parts; a bucket replaces one that is there.
    ///
    /// # Errors
    /// If it cannot be written, or is in the folder.
    fn write(&self, folder: &str, file: &str, parts: &[&[u8]]) -> Result<(), Error>;

    /// Reads a file of at most `bytes_max` bytes, if there is one.
    ///
    /// # Errors
    /// If it cannot be read or is longer.
    fn find(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error>;

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it cannot be read or is longer.
    fn read(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Vec<u8>, Error>;

    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    /// If there is none.
    fn length(&self, folder: &str, file: &str) -> Result<u64, Error>;

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, folder: &str, file: &str) -> Result<(), Error>;

    /// Writes the manifest, and so makes the files of a draft the checkpoint `name`; returns whether there was none.
    /// Files of one that may be replaced are told by `is_file`; without it none is.
    ///
    /// # Errors
    /// If the manifest cannot be written, or the checkpoint cannot get its name.
    fn publish(
        &self,
        draft: &str,
        name: &str,
        manifest: &str,
        is_file: Option<fn(&str) -> bool>,
    ) -> Result<bool, Error>;

    /// Removes a draft, up to the first file that cannot be removed.
    fn discard(&self, draft: &str);

    /// Removes files and folders whose drafts were abandoned, as `is_abandoned` says of a name and an age; a bucket has
    /// none.
    ///
    /// # Errors
    /// If they cannot be listed or removed.
    fn clean(&self, is_abandoned: &dyn Fn(&str, Duration) -> bool) -> Result<(), Error>;

    /// Lists the files in the store and in its folders whose names, such as `FOLDER/FILE`, begin with `start`.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn list(&self, start: &str) -> Result<Vec<String>, Error>;

    /// Returns the path of a file, or of a folder if the file's name is empty, for messages.
    fn path(&self, folder: &str, file: &str) -> String;
}

/// Returns the number of the newest checkpoint in a store.
///
/// # Errors
/// If its files cannot be listed.
pub fn newest(store: &dyn Store, series: Series) -> Result<Option<u64>, Error> {
    let files = store.list(series.prefix())?;
    let names = files.iter().filter_map(|file| file.strip_suffix(MANIFEST)?.strip_suffix('/'));
    Ok(names.filter_map(|name| series.number_of(name)).max())
}

/// Returns the address of the object store that these variables name.
fn endpoint(variables: impl Fn(&str) -> Option<String>) -> String {
    let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
    let given = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    given.unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", region(variables)))
}

/// Returns the region that these variables name.
fn region(variables: impl Fn(&str) -> Option<String>) -> String {
    let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
    let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
    region.unwrap_or_else(|| "us-east-1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_as_they_are_written() {
        for text in ["snapshots", "/a/b", "s3://bucket", "s3://bucket/a/snapshot-000001"] {
            assert_eq!(Location::from(Path::new(text)).to_string(), text);
        }
        let of = |text| Location::from(Path::new(text));
        assert_eq!(of("s3://bucket/a/"), Location::Bucket("bucket/a".to_owned()));
        assert_eq!(of("s3:/a"), Location::Folder("s3:/a".into()));
    }
}
