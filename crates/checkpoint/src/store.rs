//! Stores of snapshots and checkpoints: in a folder, or in a bucket of an object store.
//!
//! Law: a reader of a store finds a checkpoint as a whole or not at all; two jobs that publish snapshots at
//! the same time get different numbers.

#[cfg(feature = "s3")]
pub(crate) mod bucket;
pub(crate) mod folder;

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::manifest::{MANIFEST, Series};
pub use folder::length_of;

/// Way in which a draft begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// One process makes the draft's folder, before the others write to it.
    Alone,
    /// Every process makes the draft's folder, unless another one has made it.
    Shared,
}

/// Store of snapshots or checkpoints. A file is identified by a folder and a name in it. Errors name the
/// file.
pub trait Store: fmt::Debug + Send + Sync {
    /// Checks that a file can be written.
    ///
    /// # Errors
    /// If no file can be written.
    fn check(&self) -> Result<(), Error>;

    /// Returns whether a draft has its own folder, which is renamed when the draft is complete.
    /// Otherwise the files stay where they are, and the manifest names their folder.
    fn renames(&self) -> bool;

    /// Begins a draft in this folder.
    ///
    /// # Errors
    /// If the folder cannot be made.
    fn begin(&self, draft: &str, start: Start) -> Result<(), Error>;

    /// Writes a new file. Returns false if a file with this name exists already.
    ///
    /// # Errors
    /// If it cannot be written.
    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, Error>;

    /// Writes a new file from consecutive parts. In a bucket, an existing file is replaced.
    ///
    /// # Errors
    /// If it cannot be written, or exists in a folder already.
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

    /// Returns the length of a file in bytes, if there is one.
    ///
    /// # Errors
    /// If the store does not answer.
    fn length(&self, folder: &str, file: &str) -> Result<Option<u64>, Error>;

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, folder: &str, file: &str) -> Result<(), Error>;

    /// Writes the manifest, by which the files of a draft become the checkpoint `name`. With `is_file`,
    /// which identifies the files of a checkpoint, an existing checkpoint is replaced; without it, an
    /// existing one remains. Returns whether no checkpoint had this name.
    ///
    /// # Errors
    /// If the manifest cannot be written, or the checkpoint cannot be given its name.
    fn publish(
        &self,
        draft: &str,
        name: &str,
        manifest: &str,
        is_file: Option<fn(&str) -> bool>,
    ) -> Result<bool, Error>;

    /// Removes a draft; stops at the first file that cannot be removed.
    fn discard(&self, draft: &str);

    /// Removes files and folders of abandoned drafts; `is_abandoned` decides by a name and an age. A bucket
    /// has no such files.
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
