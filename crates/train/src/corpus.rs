//! Text to train on, byte by byte.
//!
//! A corpus is read as a whole from a file, a folder or a glob, and split once: it is cut into contiguous
//! blocks, and the last tenth of each is held out for validation. So if a folder has different kinds of
//! files, validation covers all of them. Files are read in sorted order, so every rank that sees the same
//! files has the same bytes; ranks compare [`Corpus::fingerprint`] to check this.

use std::fs;
use std::path::{Path, PathBuf};

use thinwire_wire::checksum;

use crate::error::{Error, Kind};

/// The text has one block per this many bytes, at most [`BLOCKS_MAX`].
const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS_MAX: usize = 16;
/// Number of bytes at the start of a file that are searched for a zero byte, which marks a binary file.
const PROBE_BYTES: usize = 8 << 10;
/// Largest size of a text, since every rank holds it in memory.
const CORPUS_BYTES_MAX: usize = 1 << 30;

/// Training and validation text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    training: Vec<u8>,
    validation: Vec<u8>,
    fingerprint: String,
}

impl Corpus {
    /// Splits `text` into training and validation.
    ///
    /// # Errors
    /// If it is empty or too large.
    pub fn from_text(text: &[u8]) -> Result<Corpus, Error> {
        if text.is_empty() || text.len() > CORPUS_BYTES_MAX {
            let found = text.len();
            let context = format!("corpus of {found} bytes, expected 1 to {CORPUS_BYTES_MAX}");
            return Err(Error::new(Kind::Data, context));
        }
        let blocks = (text.len() / BLOCK_BYTES).clamp(1, BLOCKS_MAX);
        let (mut training, mut validation) = (Vec::new(), Vec::new());
        for block in text.chunks(text.len().div_ceil(blocks)) {
            let (head, tail) = block.split_at(block.len() - block.len() / 10);
            training.extend_from_slice(head);
            validation.extend_from_slice(tail);
        }
        let fingerprint = format!("{} bytes, crc32 {:08x}", text.len(), checksum(text));
        Ok(Corpus { training, validation, fingerprint })
    }

    /// Reads a text file, a folder (all its text files, recursively, except hidden files, links and `target`)
    /// or a glob.
    ///
    /// # Errors
    /// If the path matches no file, or there is no text.
    pub fn from_path(path: &Path) -> Result<Corpus, Error> {
        let files = files_of(path)?;
        check_sizes(path, &files)?;
        let mut text = Vec::new();
        for file in &files {
            let bytes = fs::read(file).map_err(|e| Error::io("read", file, e))?;
            let binary = bytes[..bytes.len().min(PROBE_BYTES)].contains(&0);
            if binary && file == path && holds_images(file) {
                let context =
                    format!("{} holds arrays or a picture, expected text", file.display());
                let hint = "give --model a model of images";
                return Err(Error::new(Kind::Data, context).with_hint(hint));
            }
            // Another file that was named is taken as it is.
            if binary && file != path {
                continue;
            }
            text.extend_from_slice(&bytes);
        }
        if text.is_empty() {
            let context = format!("no text in {} ({} files)", path.display(), files.len());
            return Err(Error::new(Kind::Data, context).with_hint(HINT));
        }
        Corpus::from_text(&text)
    }

    /// Returns the bytes for training.
    pub fn training(&self) -> &[u8] {
        &self.training
    }

    /// Returns the bytes that are held out for validation.
    pub fn validation(&self) -> &[u8] {
        &self.validation
    }

    /// Returns length and checksum of the whole text, so that ranks can compare them.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Returns whether a name is that of data for a model of images.
fn holds_images(path: &Path) -> bool {
    let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
    ["npz", "npy", "png", "jpg", "jpeg"].contains(&extension.to_lowercase().as_str())
}

const HINT: &str =
    "give a text file, a folder with text files, or a quoted glob like 'src/**/*.rs'";

fn files_of(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => walk(path, &mut files)?,
        Ok(_) => files.push(path.to_owned()),
        Err(error) => match path.to_str() {
            Some(pattern) if pattern.contains(['*', '?', '[']) => files = matches_of(pattern)?,
            _ => return Err(Error::io("read", path, error).with_hint(HINT)),
        },
    }
    files.sort();
    Ok(files)
}

/// Refuses devices and pipes, which may never end, and texts that are too large for memory.
fn check_sizes(path: &Path, files: &[PathBuf]) -> Result<(), Error> {
    let mut total = 0_u64;
    for file in files {
        let found = fs::metadata(file).map_err(|e| Error::io("read", file, e))?;
        if !found.is_file() {
            let context = format!("{} is no regular file", file.display());
            return Err(Error::new(Kind::Data, context).with_hint(HINT));
        }
        total = total.saturating_add(found.len());
    }
    if total > CORPUS_BYTES_MAX as u64 {
        let path = path.display();
        let context = format!("{path} has {total} bytes, expected at most {CORPUS_BYTES_MAX}");
        return Err(Error::new(Kind::Data, context).with_hint("train on a part of it"));
    }
    Ok(())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |e| Error::io("list", folder, e);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with('.') || name == "target" {
            continue;
        }
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn matches_of(pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let paths = glob::glob(pattern).map_err(|error| {
        Error::new(Kind::Data, format!("'{pattern}' is no glob: {error}")).with_hint(HINT)
    })?;
    Ok(paths.filter_map(Result::ok).filter(|path| path.is_file()).collect())
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;
    use crate::testing::Folder;

    #[test]
    fn every_byte_is_in_training_or_validation() {
        let text: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let corpus = Corpus::from_text(&text).unwrap();
        assert_eq!(corpus.training().len() + corpus.validation().len(), text.len());
        assert!(corpus.validation().len().abs_diff(300_000) <= BLOCKS_MAX);
        assert_eq!(corpus.training()[..1000], text[..1000]);
        assert_eq!(corpus.validation()[corpus.validation().len() - 9..], text[text.len() - 9..]);
    }

    #[test]
    fn archives_of_arrays_are_no_text() {
        let folder = Folder::new("arrays");
        std::fs::write(folder.path().join("x.NPZ"), b"PK\x03\x04\0").unwrap();
        let error = Corpus::from_path(&folder.path().join("x.NPZ")).unwrap_err().to_string();
        assert!(error.ends_with("x.NPZ holds arrays or a picture, expected text"), "{error}");
    }

    #[test]
    fn a_folder_is_its_text_files_in_order() {
        let folder = Folder::new("corpus");
        for (name, bytes) in [
            ("b.txt", &b"second "[..]),
            ("a/z.txt", b"first "),
            ("c.bin", b"\0binary"),
            (".hidden", b"hidden"),
            ("target/x.txt", b"built"),
            ("d.md", b"third, and "),
            ("e/f.md", b"enough of it to split"),
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let expected = Corpus::from_text(b"first second third, and enough of it to split").unwrap();
        assert_eq!(Corpus::from_path(folder.path()).unwrap(), expected);

        let glob = Corpus::from_path(&folder.path().join("*.txt")).unwrap();
        assert_eq!(glob, Corpus::from_text(b"second ").unwrap());
        let file = Corpus::from_path(&folder.path().join("c.bin")).unwrap();
        assert_eq!(file, Corpus::from_text(b"\0binary").unwrap());
    }

    #[test]
    fn no_text_is_an_error_with_a_hint() {
        let folder = Folder::new("no-text");
        fs::write(folder.path().join("empty"), b"").unwrap();
        for name in ["", "empty", "absent", "*.none", "a[", "***"] {
            let error = Corpus::from_path(&folder.path().join(name)).unwrap_err();
            assert!(error.hint().is_some(), "{name}: {error}");
            assert!(error.to_string().lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn what_is_read_ends() {
        let error = Corpus::from_path(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero is no regular file");
        let folder = Folder::new("large");
        let sparse = fs::File::create(folder.path().join("sparse")).unwrap();
        sparse.set_len(CORPUS_BYTES_MAX as u64 + 1).unwrap();
        let error = Corpus::from_path(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("has 1073741825 bytes, expected at most 1073741824"), "{error}");
    }

    #[test]
    fn one_byte_changes_the_fingerprint() {
        let fingerprint = |text: &[u8]| Corpus::from_text(text).unwrap().fingerprint().to_owned();
        assert_eq!(fingerprint(b"abc"), "3 bytes, crc32 352441c2");
        assert_ne!(fingerprint(b"abc"), fingerprint(b"abd"));
    }
}
