//! Rows that never change, such as features of vertices, from memory or a file.
//!
//! A file is read by position, with one read per run of adjacent rows. Its pages stay in the system's page
//! cache, so several processes that read it share one copy in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, check_length};
use crate::source::Source;

/// Matrix of rows that never change.
#[derive(Debug)]
pub struct Frozen {
    rows: u64,
    width: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    File { file: File, path: PathBuf, offset: u64 },
}

impl Frozen {
    /// Creates a matrix from a buffer with rows of `width` bytes each.
    ///
    /// # Errors
    /// If the width is 0 or does not divide the buffer.
    pub fn in_memory(bytes: Vec<u8>, width: usize) -> Result<Frozen, Error> {
        if width == 0 || !bytes.len().is_multiple_of(width) {
            let found = bytes.len();
            return Err(Error::length(format!(
                "buffer of {found} bytes, expected rows of {width}"
            )));
        }
        let rows = (bytes.len() / width) as u64;
        Ok(Frozen { rows, width, place: Place::Memory(bytes) })
    }

    /// Opens a file with `rows` rows of `width` bytes each, starting at byte `offset`.
    ///
    /// # Errors
    /// If the file cannot be opened, or ends before its last row.
    pub fn open(path: &Path, offset: u64, rows: u64, width: usize) -> Result<Frozen, Error> {
        let failed = |error| Error::io(format!("cannot open {}", path.display()), error);
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        let end = rows.checked_mul(width as u64).and_then(|bytes| bytes.checked_add(offset));
        if width == 0 || end.is_none_or(|end| end > found) {
            let path = path.display();
            return Err(Error::length(format!(
                "{path} has {found} bytes, expected {rows} rows of {width} from byte {offset}"
            )));
        }
        Ok(Frozen { rows, width, place: Place::File { file, path: path.to_owned(), offset } })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl Source for Frozen {
    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        check_length("output", out.len(), rows.len(), self.width)?;
        if let Some(row) = rows.iter().find(|row| **row >= self.rows) {
            return Err(Error::row(*row, self.rows));
        }
        match &self.place {
            Place::Memory(bytes) => {
                for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
                    out.copy_from_slice(&bytes[*row as usize * self.width..][..self.width]);
                }
                Ok(())
            }
            Place::File { file, path, offset } => {
                let at = |row: u64| offset + row * self.width as u64;
                read_runs(file, rows, out, at).map_err(|(row, error)| {
                    Error::io(format!("cannot read row {row} of {}", path.display()), error)
                })
            }
        }
    }

    fn in_memory(&self, row: u64) -> Option<&[u8]> {
        let Place::Memory(bytes) = &self.place else { return None };
        let start = (row as usize).checked_mul(self.width)?;
        bytes.get(start..)?.get(..self.width)
    }
}

/// Reads rows, with one read per run of adjacent ones. An error names the first row of the failed run.
fn read_runs(
    file: &File,
    rows: &[u64],
    mut out: &mut [u8],
    at: impl Fn(u64) -> u64,
) -> Result<(), (u64, std::io::Error)> {
    let width = out.len() / rows.len().max(1);
    for run in rows.chunk_by(|row, next| row.checked_add(1) == Some(*next)) {
        let (piece, rest) = out.split_at_mut(run.len() * width);
        file.read_exact_at(piece, at(run[0])).map_err(|error| (run[0], error))?;
        out = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::Kind;

    /// File that is removed when the test ends.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str, bytes: &[u8]) -> Temporary {
            let name = format!("thinwire-rows-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, bytes).unwrap();
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_reads_as_memory_does() {
        let bytes: Vec<u8> = (0..5 + 7 * 3).collect();
        let file = Temporary::new("equal", &bytes);
        let on_disk = Frozen::open(&file.0, 5, 7, 3).unwrap();
        let in_memory = Frozen::in_memory(bytes[5..].to_vec(), 3).unwrap();
        for rows in [&[][..], &[6], &[0, 1, 2, 4, 6], &[3, 2, 2, 3, 4, 0]] {
            let (mut left, mut right) = (vec![0; rows.len() * 3], vec![9; rows.len() * 3]);
            on_disk.read(rows, &mut left).unwrap();
            in_memory.read(rows, &mut right).unwrap();
            assert_eq!(left, right);
        }
    }

    #[test]
    fn refusals_name_both_values() {
        let file = Temporary::new("short", &[0; 20]);
        let error = Frozen::open(&file.0, 3, 6, 3).unwrap_err();
        assert!(error.to_string().ends_with("has 20 bytes, expected 6 rows of 3 from byte 3"));
        assert!(Frozen::open(&file.0, u64::MAX, 6, 3).is_err());
        assert!(Frozen::open(&file.0, 0, u64::MAX, 3).is_err());
        assert_eq!(Frozen::open(Path::new("/nowhere"), 0, 0, 1).unwrap_err().kind(), Kind::Io);
        let error = Frozen::in_memory(vec![0; 20], 3).unwrap_err();
        assert_eq!(error.to_string(), "buffer of 20 bytes, expected rows of 3");
        let frozen = Frozen::open(&file.0, 0, 6, 3).unwrap();
        let error = frozen.read(&[1, 6], &mut [0; 6]).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (Kind::Row, "row 6, expected rows of 0..6")
        );
        let error = frozen.read(&[1], &mut [0; 4]).unwrap_err();
        assert_eq!(error.to_string(), "output of 4 bytes, expected 1 rows of 3");
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let file = Temporary::new("shrinks", &[0; 20]);
        let frozen = Frozen::open(&file.0, 0, 5, 4).unwrap();
        fs::write(&file.0, [0; 10]).unwrap();
        let error = frozen.read(&[3], &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().starts_with("cannot read row 3 of "), "{error}");
    }
}
