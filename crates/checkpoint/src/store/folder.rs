//! Folder of a file system that all processes share.
//!
//! A draft is a hidden folder, which is renamed once it is complete. Law: everything that is removed was
//! written by this program.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thinwire_link::durable;

use super::{Start, Store};
use crate::error::{Error, Kind};
use crate::manifest::MANIFEST;

/// Store in a folder.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Store for Folder {
    fn check(&self) -> Result<(), Error> {
        let failed = |error: io::Error| Error::new(Kind::Io, error.to_string()).with_source(error);
        durable::check_folder(&self.0).map_err(failed)
    }

    fn renames(&self) -> bool {
        true
    }

    fn begin(&self, draft: &str, start: Start) -> Result<(), Error> {
        let path = self.0.join(draft);
        let made = match start {
            Start::Alone => {
                if path.exists() {
                    fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, e))?;
                }
                // The folder itself must be new: through a link, files would go elsewhere.
                fs::create_dir_all(&self.0).and_then(|()| fs::create_dir(&path))
            }
            Start::Shared => fs::create_dir_all(&path),
        };
        made.map_err(|e| Error::io("create", &path, e))
    }

    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, Error> {
        let path = self.0.join(folder).join(file);
        match durable::create(&path, &[bytes]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(Error::io("write", &path, error))
            }
        }
    }

    fn write(&self, folder: &str, file: &str, parts: &[&[u8]]) -> Result<(), Error> {
        let path = self.0.join(folder).join(file);
        durable::create(&path, parts).map_err(|e| Error::io("write", &path, e))
    }

    fn find(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let is_there = self.0.join(folder).join(file).exists();
        is_there.then(|| self.read(folder, file, bytes_max)).transpose()
    }

    fn read(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let path = self.0.join(folder).join(file);
        let failed = |why| Error::new(Kind::Io, format!("{}: {why}", path.display()));
        read(&path, bytes_max).map_err(failed)
    }

    fn length(&self, folder: &str, file: &str) -> Result<Option<u64>, Error> {
        let path = self.0.join(folder).join(file);
        match path.metadata() {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    fn remove(&self, folder: &str, file: &str) -> Result<(), Error> {
        let path = self.0.join(folder).join(file);
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))
    }

    fn publish(
        &self,
        draft: &str,
        name: &str,
        manifest: &str,
        is_file: Option<fn(&str) -> bool>,
    ) -> Result<bool, Error> {
        let (draft, target) = (self.0.join(draft), self.0.join(name));
        let path = draft.join(MANIFEST);
        durable::replace(&path, manifest.as_bytes()).map_err(|e| Error::io("write", &path, e))?;
        match is_file {
            _ if !target.exists() => {}
            None => return Ok(false),
            Some(is_file) if target.is_dir() => {
                remove_files(&target, is_file).map_err(|e| Error::io("replace", &target, e))?;
                // Files of the user stay where they are, beside the new ones.
                if fs::remove_dir(&target).is_err() {
                    fill(&draft, &target).map_err(|e| Error::io("write", &target, e))?;
                    durable::sync_folder(&self.0).map_err(|e| Error::io("write", &self.0, e))?;
                    return Ok(true);
                }
            }
            // A file in the way stays there, and the draft cannot get its name.
            Some(_) => {}
        }
        match fs::rename(&draft, &target) {
            Ok(()) => {}
            Err(_) if is_file.is_none() && target.exists() => return Ok(false),
            Err(error) => return Err(Error::io("rename", &draft, error)),
        }
        durable::sync_folder(&self.0).map_err(|e| Error::io("write", &self.0, e))?;
        Ok(true)
    }

    fn discard(&self, draft: &str) {
        // A later draft cleans up what could not be removed.
        let _ = fs::remove_dir_all(self.0.join(draft));
    }

    fn clean(&self, is_abandoned: &dyn Fn(&str, Duration) -> bool) -> Result<(), Error> {
        let failed = |e| Error::io("list", &self.0, e);
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| is_abandoned(name, age)) {
                let path = entry.path();
                let removed =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(|e| Error::io("remove", &path, e))?;
            }
        }
        Ok(())
    }

    fn list(&self, start: &str) -> Result<Vec<String>, Error> {
        list(&self.0, start).map_err(|e| Error::io("list", &self.0, e))
    }

    fn path(&self, folder: &str, file: &str) -> String {
        let path = [folder, file].into_iter().filter(|part| !part.is_empty());
        path.fold(self.0.clone(), |path, part| path.join(part)).display().to_string()
    }
}

/// Lists the files in a folder and in its subfolders. Subfolders that cannot be read do not belong to a
/// snapshot.
fn list(folder: &Path, start: &str) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        match entry.path() {
            _ if !name.starts_with(start) => {}
            path if path.is_file() => files.push(name),
            path => {
                let inner = fs::read_dir(&path).into_iter().flatten().flatten();
                let inner = inner.filter(|inner| inner.path().is_file());
                let inner = inner.filter_map(|inner| inner.file_name().into_string().ok());
                files.extend(inner.map(|file| format!("{name}/{file}")));
            }
        }
    }
    Ok(files)
}

/// Returns the length of a regular file.
pub fn length_of(path: &Path) -> Result<u64, String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    // Opening a pipe would wait for a writer, and a device may be endless.
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => Err("no regular file".to_owned()),
    }
}

/// Reads a regular file of at most `bytes_max` bytes.
fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let said = |error: io::Error| error.to_string();
    let length = length_of(path)?;
    if length > bytes_max {
        return Err(format!("{length} bytes, expected at most {bytes_max}"));
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(length).is_ok_and(|length| bytes.try_reserve_exact(length).is_ok());
    if !room {
        return Err(format!("{length} bytes, which do not fit in memory"));
    }
    let file = File::open(path).map_err(said)?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(said)?;
    Ok(bytes)
}

/// Removes the files of a checkpoint. The manifest is removed first, so that a reader sees no checkpoint.
fn remove_files(folder: &Path, is_file: fn(&str) -> bool) -> io::Result<()> {
    let mut files = names(folder)?;
    files.retain(|name| is_file(name));
    files.sort_by_key(|name| name != MANIFEST);
    files.iter().try_for_each(|name| fs::remove_file(folder.join(name)))
}

/// Moves all files of a draft to a folder with other files; the manifest is moved last.
fn fill(draft: &Path, target: &Path) -> io::Result<()> {
    let mut files = names(draft)?;
    files.sort_by_key(|name| name == MANIFEST);
    files.iter().try_for_each(|name| fs::rename(draft.join(name), target.join(name)))?;
    fs::remove_dir(draft)
}

/// Lists the names in a folder that are valid text.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(io::Result::transpose).collect()
}
