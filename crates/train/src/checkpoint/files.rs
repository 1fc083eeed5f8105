//! The files of a checkpoint while it is written: in a folder, in a bucket of an object store, or in memory.
//!
//! Memory is for a rank whose files another one writes, because the folder that all share cannot be written
//! and no other one is known to be shared.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thinwire_link::durable;
use thinwire_server::Store;

use super::bucket::{Objects, unwritten};
use super::manifest::{FileCheck, Manifest};
use super::names::MANIFEST;
use super::place::place;
use crate::error::Error;

/// Files of one checkpoint before it has its name.
#[derive(Debug)]
pub(super) enum Files {
    /// A folder that is renamed to `target` once it is whole.
    Folder { path: PathBuf, target: PathBuf },
    /// Objects of a bucket.
    Bucket(Objects),
    /// Bytes by name.
    Memory(RefCell<BTreeMap<String, Vec<u8>>>),
}

impl Files {
    /// Returns the files of the checkpoint `name` in `folder`.
    pub fn in_folder(folder: &Path, name: &str) -> Files {
        Files::Folder { path: folder.join(format!(".{name}.partial")), target: folder.join(name) }
    }

    /// Returns the files of the checkpoint `name` in a bucket, in the folder `token` of it.
    pub fn in_bucket(store: Arc<dyn Store>, name: &str, token: &str) -> Files {
        let (name, token) = (name.to_owned(), token.to_owned());
        Files::Bucket(Objects { store, name, token, is_named: Cell::new(false) })
    }

    /// Returns what tells a draft from others of its step, if several may be written at once.
    pub fn token(&self) -> &str {
        match self {
            Files::Bucket(objects) => &objects.token,
            Files::Folder { .. } | Files::Memory(_) => "",
        }
    }

    /// Returns files in memory, none yet.
    pub fn in_memory() -> Files {
        Files::Memory(RefCell::default())
    }

    /// Returns the bytes of files in memory.
    pub fn into_memory(self) -> BTreeMap<String, Vec<u8>> {
        match self {
            Files::Memory(files) => files.into_inner(),
            Files::Folder { .. } | Files::Bucket(_) => BTreeMap::new(),
        }
    }

    /// Makes an empty place for files.
    pub fn create(&self) -> Result<(), Error> {
        let Files::Folder { path, target } = self else { return Ok(()) };
        let folder = target.parent().unwrap_or(Path::new(""));
        if path.exists() {
            fs::remove_dir_all(path).map_err(|e| Error::io("remove", path, e))?;
        }
        // The folder itself must be new: through a link, files would go elsewhere.
        fs::create_dir_all(folder)
            .and_then(|()| fs::create_dir(path))
            .map_err(|e| Error::io("create", path, e))
    }

    /// Removes all files, unless they may be those of a checkpoint by now.
    pub fn discard(&self) {
        // What is left is removed by the next one who writes here.
        match self {
            Files::Folder { path, .. } => drop(fs::remove_dir_all(path)),
            Files::Bucket(objects) => objects.discard(),
            Files::Memory(_) => {}
        }
    }

    /// Returns the path of a file, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Files::Folder { path, .. } => path.join(name),
            Files::Bucket(objects) => objects.store.path(&objects.folder(), name).into(),
            Files::Memory(_) => PathBuf::from(name),
        }
    }

    /// Writes a new file.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), Error> {
        match self {
            Files::Folder { path, .. } => {
                let path = path.join(name);
                durable::create(&path, parts).map_err(|e| Error::io("write", &path, e))
            }
            Files::Bucket(objects) => {
                objects.store.write(&objects.folder(), name, parts).map_err(unwritten)
            }
            Files::Memory(files) => {
                files.borrow_mut().insert(name.to_owned(), parts.concat());
                Ok(())
            }
        }
    }

    /// Returns whether a file is there.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Files::Folder { path, .. } => path.join(name).exists(),
            Files::Bucket(objects) => objects.store.length(&objects.folder(), name).is_ok(),
            Files::Memory(files) => files.borrow().contains_key(name),
        }
    }

    /// Reads a file back; returns its length and checksum.
    pub fn check(&self, name: &str) -> Result<FileCheck, Error> {
        let path = self.path(name);
        let bytes = match self {
            Files::Folder { .. } => fs::read(&path),
            Files::Bucket(objects) => return objects.check(name).map_err(unwritten),
            Files::Memory(files) => {
                files.borrow().get(name).cloned().ok_or(std::io::ErrorKind::NotFound.into())
            }
        };
        let bytes = bytes.map_err(|e| Error::io("read back", &path, e))?;
        Ok(FileCheck::of(&bytes))
    }

    /// Writes the manifest, and gives the checkpoint its name. Returns its path.
    pub fn publish(&self, manifest: Manifest) -> Result<PathBuf, Error> {
        match self {
            Files::Folder { path, target } => {
                self.write(MANIFEST, &[manifest.to_text().as_bytes()])?;
                sync(path)?;
                place(path, target)?;
                target.parent().map_or(Ok(()), sync)?;
                Ok(target.clone())
            }
            Files::Bucket(objects) => objects.publish(manifest).map_err(unwritten),
            Files::Memory(_) => Ok(PathBuf::new()),
        }
    }
}

/// Syncs a folder to disk, so that new names in it survive a power cut.
fn sync(folder: &Path) -> Result<(), Error> {
    durable::sync_folder(folder).map_err(|e| Error::io("write", folder, e))
}
