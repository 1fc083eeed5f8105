//! The files of a checkpoint while it is written: in a folder, or in memory.
//!
//! Memory is for a rank whose files another one writes, because the folder that all share cannot be written
//! and no other one is known to be shared.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use thinwire_link::durable;
use thinwire_wire::checksum;

use super::manifest::{FileCheck, Manifest};
use super::names::MANIFEST;
use super::place::place;
use crate::error::Error;

/// Files of one checkpoint before it has its name.
#[derive(Debug)]
pub(super) enum Files {
    /// A folder that is renamed to `target` once it is whole.
    Folder { path: PathBuf, target: PathBuf },
    /// Bytes by name.
    Memory(RefCell<BTreeMap<String, Vec<u8>>>),
}

impl Files {
    /// Returns the files of the checkpoint `name` in `folder`.
    pub fn in_folder(folder: &Path, name: &str) -> Files {
        Files::Folder { path: folder.join(format!(".{name}.partial")), target: folder.join(name) }
    }

    /// Returns files in memory, none yet.
    pub fn in_memory() -> Files {
        Files::Memory(RefCell::default())
    }

    /// Returns the bytes of files in memory.
    pub fn into_memory(self) -> BTreeMap<String, Vec<u8>> {
        match self {
            Files::Memory(files) => files.into_inner(),
            Files::Folder { .. } => BTreeMap::new(),
        }
    }

    /// Makes an empty place for files in `folder`.
    pub fn create(&self, folder: &Path) -> Result<(), Error> {
        let Files::Folder { path, .. } = self else { return Ok(()) };
        if path.exists() {
            fs::remove_dir_all(path).map_err(|e| Error::io("remove", path, e))?;
        }
        // The folder itself must be new: through a link, files would go elsewhere.
        fs::create_dir_all(folder)
            .and_then(|()| fs::create_dir(path))
            .map_err(|e| Error::io("create", path, e))
    }

    /// Removes all files.
    pub fn discard(&self) {
        if let Files::Folder { path, .. } = self {
            // What is left is removed by the next one who writes here.
            let _ = fs::remove_dir_all(path);
        }
    }

    /// Returns the path of a file, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Files::Folder { path, .. } => path.join(name),
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
            Files::Memory(files) => files.borrow().contains_key(name),
        }
    }

    /// Reads a file back; returns its length and checksum.
    pub fn check(&self, name: &str) -> Result<FileCheck, Error> {
        let path = self.path(name);
        let bytes = match self {
            Files::Folder { .. } => fs::read(&path),
            Files::Memory(files) => {
                files.borrow().get(name).cloned().ok_or(std::io::ErrorKind::NotFound.into())
            }
        };
        let bytes = bytes.map_err(|e| Error::io("read back", &path, e))?;
        Ok(FileCheck { bytes: bytes.len() as u64, crc32: checksum(&bytes) })
    }

    /// Writes the manifest, and gives the checkpoint its name. Returns its path.
    pub fn publish(&self, manifest: &Manifest) -> Result<PathBuf, Error> {
        self.write(MANIFEST, &[manifest.to_text().as_bytes()])?;
        match self {
            Files::Folder { path, target } => {
                sync(path)?;
                place(path, target)?;
                target.parent().map_or(Ok(()), sync)?;
                Ok(target.clone())
            }
            Files::Memory(_) => Ok(PathBuf::new()),
        }
    }
}

/// Syncs a folder to disk, so that new names in it survive a power cut.
fn sync(folder: &Path) -> Result<(), Error> {
    durable::sync_folder(folder).map_err(|e| Error::io("write", folder, e))
}
