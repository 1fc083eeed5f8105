//! Files that are written whole or not at all.
//!
//! Bytes are written to a new file with a random name in the target's folder and synced to disk; the
//! file is renamed to the target's name, and the folder is synced. Laws: a reader finds the old file or
//! the new one, also after a power cut; nothing is written through a symbolic link that another user
//! has placed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Token;

/// Replaces the file at `path`, or creates it.
///
/// # Errors
/// Errors of the file system. The old file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let folder = folder_of(path);
    let temporary = temporary(folder, bytes)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_folder(folder)
}

/// Checks that [`replace`] can write a file, and leaves nothing behind.
///
/// # Errors
/// Errors of the file system.
pub fn check(path: &Path) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    fs::remove_file(temporary(folder_of(path), b"")?)
}

/// Creates a folder if it is missing, and checks that files can be written to it; leaves no file behind.
///
/// # Errors
/// Errors of the file system, also for a disk that is full.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let name = Token::random().map_err(io::Error::other)?;
    let probe = folder.join(format!(".probe-{name}"));
    fs::create_dir_all(folder)?;
    // A disk that is full may take the name and not the byte.
    let written = fs::write(&probe, b".");
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

/// Creates a file in `folder` with these bytes, synced to disk, under a random name with a leading
/// dot.
///
/// # Errors
/// Errors of the file system. No file is left behind then.
fn temporary(folder: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let name = Token::random().map_err(io::Error::other)?;
    let path = folder.join(format!(".thinwire-{name}"));
    create(&path, &[bytes]).inspect_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            drop(fs::remove_file(&path));
        }
    })?;
    Ok(path)
}

/// Writes a new file from consecutive parts, and syncs it to disk.
///
/// # Errors
/// Errors of the file system; `AlreadyExists` also for a symbolic link.
pub fn create(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

/// Syncs a folder, and so the names in it, to disk.
///
/// # Errors
/// Errors of the file system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    struct Folder(TempDir);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(TempDir::with_prefix(format!("thinwire-durable-{name}-")).unwrap())
        }

        fn names(&self) -> Vec<String> {
            let names =
                fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.map(|name| name.into_string().unwrap()).collect()
        }
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = Folder::new("replace");
        let path = folder.0.path().join("file");
        for text in ["made", "replaced"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(folder.names(), ["file"]);
        fs::create_dir(folder.0.path().join("taken")).unwrap();
        for (name, writable) in
            [("taken", false), ("gone/file", false), ("file", true), ("new", true)]
        {
            let path = folder.0.path().join(name);
            assert_eq!(check(&path).is_ok(), writable, "{name}");
        }
        assert!(replace(&folder.0.path().join("taken"), b"x").is_err());
        assert_eq!(folder.names().len(), 2);
    }

    #[test]
    fn nothing_is_written_through_a_planted_link() {
        let folder = Folder::new("planted");
        let (victim, link) = (folder.0.path().join("victim"), folder.0.path().join("link"));
        fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(create(&link, &[b"x"]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        replace(&link, b"x").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        let names =
            [temporary(folder.0.path(), b"1").unwrap(), temporary(folder.0.path(), b"2").unwrap()];
        assert_ne!(names[0], names[1]);
    }
}
