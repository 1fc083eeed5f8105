//! Reading the user's files with a size limit, and replacing them atomically.
//!
//! Opening a pipe waits for a writer, and reading a device may never end. These functions therefore read
//! only regular files of limited length. For anything else they return an error that names the expected
//! file.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use thinwire_link::durable;

use crate::failure::{self, hinted};
use crate::output::say;

/// Kind of a file: its name in messages, and its usual origin.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    /// The name with an article, such as "a plan".
    pub name: &'static str,
    /// The largest size of such a file.
    pub bytes_max: u64,
    /// The usual origin of such a file.
    pub hint: &'static str,
}

/// A file with a plan for a whole model.
pub const PLAN: Sort = Sort {
    name: "a plan",
    bytes_max: 1 << 26,
    hint: "thinwire plan make --output FILE writes one",
};
/// A cluster file, which describes the machines.
pub const CLUSTER: Sort = Sort {
    name: "a cluster",
    bytes_max: 1 << 24,
    hint: "thinwire plan calibrate --output FILE writes one; docs/planning.md describes it",
};
/// A model in thinwire's own format.
pub const MODEL: Sort = Sort {
    name: "a model",
    bytes_max: 1 << 30,
    hint: "thinwire model show NAME --output FILE.json writes one",
};
/// A model of another program, which may contain its weights. Protobuf files are at most 2 GiB.
pub const ONNX: Sort =
    Sort { name: "an ONNX model", bytes_max: 1 << 31, hint: "torch.onnx.export writes one" };

/// Returns a file's text.
///
/// # Errors
/// If the file cannot be read, is not a regular file, is too long, or is not text.
pub fn text(path: &Path, sort: &Sort) -> Result<String> {
    let bytes = bytes(path, sort)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        refused(path, sort, &format!("is no text from byte {at} on"))
    })
}

/// Returns a file's bytes.
///
/// # Errors
/// If the file cannot be read, is not a regular file, or is too long.
pub fn bytes(path: &Path, sort: &Sort) -> Result<Vec<u8>> {
    let unread = |error: io::Error| {
        hinted(Error::new(error).context(format!("cannot read {}", path.display())), sort.hint)
    };
    let metadata = path.metadata().map_err(unread)?;
    if !metadata.is_file() {
        return Err(refused(path, sort, "is no regular file"));
    }
    let too_long = |length: u64| Err(refused(path, sort, &format!("has {length} bytes")));
    if metadata.len() > sort.bytes_max {
        return too_long(metadata.len());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unread)?;
    // The file may have grown since.
    file.take(sort.bytes_max + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > sort.bytes_max {
        return too_long(bytes.len() as u64);
    }
    Ok(bytes)
}

/// Returns `length` bytes of a regular file, from `offset` on.
///
/// # Errors
/// If the file cannot be read, is not a regular file, or ends too early.
pub fn range(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(offset))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the result of parsing a file's text. An error gets the file's name and a hint: its own hint, or
/// else the usual origin of such a file.
///
/// # Errors
/// Errors of parsing the text.
pub fn parsed<T, E: Into<Error>>(path: &Path, sort: &Sort, parsed: Result<T, E>) -> Result<T> {
    parsed.map_err(|error| {
        let error = error.into().context(path.display().to_string());
        let knows = failure::lines(&error).1.is_some();
        if knows { error } else { hinted(error, sort.hint) }
    })
}

fn refused(path: &Path, Sort { name, bytes_max, hint }: &Sort, found: &str) -> anyhow::Error {
    let shown = path.display();
    hinted(anyhow!("{shown} {found}, expected {name} of at most {bytes_max} bytes"), *hint)
}

/// Replaces a file atomically, so that it has either the old or the new contents. Links are followed. A
/// device or a pipe is written to and stays in place.
///
/// # Errors
/// If its folder is not writable.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = match fs::metadata(path) {
        Ok(found) if !found.is_file() => fs::write(path, bytes),
        Ok(_) => fs::canonicalize(path).and_then(|target| durable::replace(&target, bytes)),
        // A link to nowhere: writing makes what it points to.
        Err(_) if path.is_symlink() => fs::write(path, bytes),
        Err(_) => durable::replace(path, bytes),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file as [`replace`] does, and prints a line about it.
///
/// # Errors
/// If its folder is not writable.
pub fn write(path: &Path, text: &str) -> Result<()> {
    replace(path, text.as_bytes())?;
    say(format!("wrote {}", path.display()));
    Ok(())
}

/// Checks that `what` can be written to `path`, which a flag has named. `None` is accepted.
///
/// # Errors
/// If the path is a folder, or its folder does not exist.
pub fn ensure_place(path: Option<&Path>, what: &str, flag: &str) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let shown = path.display();
    let problem = if path.is_dir() {
        format!("cannot write {what}: {shown} is a folder")
    } else if !folder.is_dir() {
        format!("cannot write {what} {shown}: {} is no folder", folder.display())
    } else {
        return Ok(());
    };
    Err(hinted(anyhow!(problem), format!("give the path of a file with {flag}")))
}

/// Checks that the file of a flag is not one of the files that are read.
///
/// # Errors
/// If it is one of them, even by a different path.
pub fn ensure_other<'a>(
    flag: &str,
    output: &Path,
    read: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let target = output.canonicalize().ok();
    let is_target = |path: &&Path| target.is_some() && path.canonicalize().ok() == target;
    match read.into_iter().find(is_target) {
        Some(path) => bail!("{flag} would overwrite the file that is read, {}", path.display()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_files_and_follows_links_only() {
        let folder = std::env::temp_dir().join(format!("thinwire-replace-{}", std::process::id()));
        fs::create_dir_all(folder.join("inner")).unwrap();
        let (file, link) = (folder.join("inner/file"), folder.join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for text in ["made", "replaced"] {
            replace(&link, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert!(link.is_symlink());
        }
        let device = folder.join("device");
        std::os::unix::fs::symlink("/dev/full", &device).unwrap();
        assert!(replace(&device, b"x").is_err() && device.is_symlink());
        assert_eq!(fs::read_dir(folder.join("inner")).unwrap().count(), 1);
        // Somebody has placed a link where an earlier version wrote first.
        let victim = folder.join("victim");
        fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, folder.join("inner/file.partial")).unwrap();
        replace(&file, b"again").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_read_is_a_short_regular_file_of_text() {
        let small = Sort { bytes_max: 3, ..CLUSTER };
        let path = std::env::temp_dir().join(format!("thinwire-read-{}", std::process::id()));
        let said = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            text(&path, &small).map_err(|error| error.to_string())
        };
        assert_eq!(said(b"abc").unwrap(), "abc");
        assert!(
            said(b"abcd")
                .unwrap_err()
                .ends_with("has 4 bytes, expected a cluster of at most 3 bytes")
        );
        assert!(said(b"a\xff").unwrap_err().contains("is no text from byte 1 on"));
        fs::remove_file(&path).unwrap();
        let device = text(Path::new("/dev/zero"), &small).unwrap_err();
        assert!(device.to_string().contains("/dev/zero is no regular file"), "{device}");
    }
}
