//! File of spilled pages.
//!
//! The file is unlinked once it is open, so the system frees it when the process ends, however it ends. Pages
//! are overwritten in place, each at the position of its number.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind};

/// Largest number of names to try in a folder.
const NAMES_MAX: u32 = 1000;

/// File of pages, private to this process.
#[derive(Debug)]
pub struct PageFile {
    file: File,
    /// Folder of the file, named in errors.
    folder: PathBuf,
    page_bytes: u64,
}

impl PageFile {
    /// Creates an empty file in a folder, for pages of at most `page_bytes` bytes.
    ///
    /// # Errors
    /// If the folder does not exist or no file can be created in it.
    pub fn create(folder: &Path, page_bytes: usize) -> Result<PageFile, Error> {
        let file = open(folder).map_err(|error| disk(folder, "cannot make a file", &error))?;
        Ok(PageFile { file, folder: folder.to_owned(), page_bytes: page_bytes as u64 })
    }

    /// Writes a page.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn write(&self, page: u32, words: &[u32]) -> Result<(), Error> {
        let written = self.file.write_all_at(bytemuck::must_cast_slice(words), self.start(page));
        written.map_err(|error| disk(&self.folder, "cannot write rows", &error))
    }

    /// Reads a page that was written before.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(&self, page: u32, words: &mut [u32]) -> Result<(), Error> {
        let bytes = bytemuck::must_cast_slice_mut(words);
        let read = self.file.read_exact_at(bytes, self.start(page));
        read.map_err(|error| disk(&self.folder, "cannot read rows back", &error))
    }

    fn start(&self, page: u32) -> u64 {
        u64::from(page) * self.page_bytes
    }
}

fn open(folder: &Path) -> io::Result<File> {
    let process = std::process::id();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    for number in 0..NAMES_MAX {
        let path = folder.join(format!("thinwire-rows-{process}-{number}"));
        match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.and_then(|file| std::fs::remove_file(&path).map(|()| file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn disk(folder: &Path, what: &str, error: &io::Error) -> Error {
    let folder = folder.display();
    let error =
        Error::new(Kind::Disk, format!("{what} beyond the memory limit in {folder}: {error}"));
    error.with_hint("give a folder with free space: --spill-dir FOLDER")
}

#[cfg(test)]
impl PageFile {
    /// Creates a file whose writes fail as on a full disk.
    pub fn full() -> PageFile {
        let file = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        PageFile { file, folder: PathBuf::from("/dev/full"), page_bytes: 4096 }
    }

    /// Truncates the file.
    pub fn lose(&self) {
        self.file.set_len(0).unwrap();
    }

    /// Changes a bit in every 64th byte.
    pub fn spoil(&self) {
        for at in (0..self.file.metadata().unwrap().len()).step_by(64) {
            let mut byte = [0];
            self.file.read_exact_at(&mut byte, at).unwrap();
            self.file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_back_and_the_folder_stays_empty() {
        let name = format!("thinwire-pages-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let file = PageFile::create(&folder, 12).unwrap();
        for page in [7, 0, 3, 7] {
            file.write(page, &[page, page + 1]).unwrap();
        }
        let mut words = [0; 2];
        for page in [0, 3, 7] {
            file.read(page, &mut words).unwrap();
            assert_eq!(words, [page, page + 1]);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(file.read(8, &mut words).unwrap_err().kind(), Kind::Disk);
        let error = PageFile::create(&folder.join("none"), 12).unwrap_err().to_string();
        assert!(error.starts_with("cannot make a file beyond the memory limit in "), "{error}");
        std::fs::remove_dir(&folder).unwrap();
    }
}
