//! Locations of snapshots and checkpoints, which all processes of a job share: a folder, or a bucket of
//! an object store.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::store::{self, Store};

pub(crate) const SCHEME: &str = "s3://";
/// Default for the longest time of a request to a bucket, including all its attempts.
const REQUEST: Duration = Duration::from_secs(90);
/// Longest time of a request to a bucket that delays a training, not counting the time for the bytes
/// that it sends. After a signal, a launcher waits for ranks about three times as long.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time for a request that checks whether a place can be written.
const CHECK: Duration = Duration::from_secs(20);

/// Place of snapshots or checkpoints, given as text: the path of a folder, or `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Folder that all processes share.
    Folder(PathBuf),
    /// Bucket of an object store, with the prefix of its objects' names, but without the scheme.
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
    /// Checks that `what`, such as snapshots, can be written here. Leaves nothing behind but the folder.
    ///
    /// # Errors
    /// If nothing can be written, or a bucket's endpoint or credentials are missing.
    pub fn check(&self, what: &str) -> Result<(), Error> {
        let doing = format!("cannot write {what} to {self}");
        self.store_within(CHECK)?.check().map_err(|error| error.context(&doing))
    }

    /// Returns the location as text, with the address of the object store for a bucket.
    pub fn address(&self) -> String {
        match self {
            Location::Folder(_) => self.to_string(),
            Location::Bucket(_) => format!("{self} at {}", endpoint(|name| env::var(name).ok())),
        }
    }

    /// Opens the store. For a bucket, the usual environment variables have the address and credentials.
    ///
    /// # Errors
    /// If a variable is missing, or this build has no object stores.
    pub fn store(&self) -> Result<Arc<dyn Store>, Error> {
        self.store_within(REQUEST)
    }

    /// Opens the store as [`Location::store`] does. A request to a bucket fails after about `patience`, plus
    /// the time for the bytes that it sends. This includes all attempts, and also holds if the object store
    /// is silent.
    ///
    /// # Errors
    /// If a variable is missing, or this build has no object stores.
    pub fn store_within(&self, patience: Duration) -> Result<Arc<dyn Store>, Error> {
        self.store_with(|name| env::var(name).ok(), patience)
    }

    /// Opens the store as [`Location::store_within`] does, with these variables instead of the environment's.
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
            Location::Folder(path) => Ok(Arc::new(store::folder::Folder(path.clone()))),
            #[cfg(feature = "s3")]
            Location::Bucket(bucket) => {
                Ok(Arc::new(store::bucket::open(bucket, variables, patience)?))
            }
            #[cfg(not(feature = "s3"))]
            Location::Bucket(_) => Err(Error::new(
                crate::error::Kind::Invalid,
                format!(
                    "{self}: this build of thinwire cannot use object stores; \
                         cargo build --release --features s3 makes one that can"
                ),
            )),
        }
    }

    /// Splits the last part off the name in a bucket; returns the rest and that part.
    pub fn split(&self) -> Option<(Location, String)> {
        let Location::Bucket(bucket) = self else { return None };
        let (parent, name) = bucket.rsplit_once('/')?;
        Some((Location::Bucket(parent.to_owned()), name.to_owned()))
    }
}

/// Returns the address of the object store that these variables name.
pub(crate) fn endpoint(variables: impl Fn(&str) -> Option<String>) -> String {
    let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
    let given = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    given.unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", region(variables)))
}

/// Returns the region that these variables name.
pub(crate) fn region(variables: impl Fn(&str) -> Option<String>) -> String {
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
