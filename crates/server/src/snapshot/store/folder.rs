//! Folder of a file system that all servers share.
//!
//! A draft is a hidden folder, which is renamed once it is complete.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thinwire_link::durable;

use super::Store;
use crate::snapshot::manifest::{MANIFEST, Manifest, snapshot_folder};

const PARTIAL: [&str; 2] = [".snapshot-", ".partial"];
/// Age at which a draft counts as abandoned.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Store in a folder.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Store for Folder {
    fn check(&self) -> Result<(), String> {
        durable::check_folder(&self.0).map_err(|error| error.to_string())
    }

    fn begin(&self, draft: &str) -> Result<String, String> {
        let [start, end] = PARTIAL;
        let name = format!("{start}{draft}{end}");
        let path = self.0.join(&name);
        fs::create_dir_all(&path).map_err(failed("create", &path))?;
        clean(&self.0);
        Ok(name)
    }

    fn create(&self, folder: &str, file: &str, bytes: &[u8]) -> Result<bool, String> {
        let path = self.0.join(folder).join(file);
        match durable::create(&path, &[bytes]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(failed("write", &path)(error))
            }
        }
    }

    fn write(&self, folder: &str, file: &str, parts: &[&[u8]]) -> Result<(), String> {
        let path = self.0.join(folder).join(file);
        durable::create(&path, parts).map_err(failed("write", &path))
    }

    fn find(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
        let is_there = self.0.join(folder).join(file).exists();
        is_there.then(|| self.read(folder, file, bytes_max)).transpose()
    }

    fn read(&self, folder: &str, file: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
        let path = self.0.join(folder).join(file);
        read(&path, bytes_max).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn length(&self, folder: &str, file: &str) -> Result<u64, String> {
        let path = self.0.join(folder).join(file);
        Ok(path.metadata().map_err(failed("read", &path))?.len())
    }

    fn remove(&self, folder: &str, file: &str) -> Result<(), String> {
        let path = self.0.join(folder).join(file);
        fs::remove_file(&path).map_err(failed("remove", &path))
    }

    fn publish(&self, draft: &str, manifest: &mut Manifest) -> Result<bool, String> {
        let draft = self.0.join(draft);
        let path = draft.join(MANIFEST);
        durable::replace(&path, manifest.to_text().as_bytes()).map_err(failed("write", &path))?;
        durable::sync_folder(&draft).map_err(failed("write", &draft))?;
        let target = self.0.join(snapshot_folder(manifest.number));
        if target.exists() {
            return Ok(false);
        }
        match fs::rename(&draft, &target) {
            Ok(()) => {}
            Err(_) if target.exists() => return Ok(false),
            Err(error) => return Err(failed("rename", &draft)(error)),
        }
        durable::sync_folder(&self.0).map_err(failed("write", &self.0))?;
        Ok(true)
    }

    fn discard(&self, draft: &str) {
        // A later draft cleans up what could not be removed.
        let _ = fs::remove_dir_all(self.0.join(draft));
    }

    fn list(&self, start: &str) -> Result<Vec<String>, String> {
        list(&self.0, start).map_err(failed("list", &self.0))
    }

    fn path(&self, folder: &str, file: &str) -> String {
        let path = [folder, file].into_iter().filter(|part| !part.is_empty());
        path.fold(self.0.clone(), |path, part| path.join(part)).display().to_string()
    }
}

/// Lists the files in a folder and in those in it. What cannot be read in them is none of a snapshot.
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
        return Err(format!("{length} bytes, more than there is memory"));
    }
    let file = File::open(path).map_err(said)?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(said)?;
    Ok(bytes)
}

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    let text = format!("cannot {what} {}", path.display());
    move |error| format!("{text}: {error}")
}

/// Removes abandoned drafts.
fn clean(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_draft = name.to_str().is_some_and(|name| {
            let rest = name.strip_prefix(PARTIAL[0]).and_then(|rest| rest.strip_suffix(PARTIAL[1]));
            rest.is_some()
        });
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| time.elapsed().ok());
        if is_draft && age.is_some_and(|age| age > STALE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
