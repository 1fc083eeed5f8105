//! Reading checkpoints, trusting nothing.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use thinwire_model::check_keys;
use thinwire_wire::{Rank, checksum};

use super::manifest::{FORMAT, Manifest};
use super::names::{MANIFEST, MODEL, Tensors, exchange_file};
use crate::Parameter;
use crate::error::{Error, Kind};

/// A checkpoint that was found and whose manifest is sound.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`, the folder that holds its manifest.
    ///
    /// # Errors
    /// If the manifest is missing or damaged.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        let file = path.join(MANIFEST);
        let text = bytes(&file, MANIFEST_BYTES_MAX).map_err(|why| {
            let context = format!("no checkpoint at {}: {MANIFEST}: {why}", path.display());
            Error::new(Kind::Checkpoint, context).with_hint(HINT)
        })?;
        if let Some(format) = Manifest::newer_format(&text) {
            let context = format!("{} has format {format}, expected {FORMAT}", file.display());
            let error = Error::new(Kind::Checkpoint, context);
            return Err(error.with_hint("a newer thinwire has written it: use that one"));
        }
        let manifest = Manifest::from_text(&text).map_err(|why| corrupt(&file, &why))?;
        Ok(Checkpoint { path: path.to_owned(), manifest })
    }

    /// Manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether each rank has written its own parts, as under a plan.
    pub fn is_sharded(&self) -> bool {
        !self.manifest.files.contains_key(MODEL)
    }

    /// Returns the values of `parameters`, also where they lie in parts of several ranks.
    ///
    /// # Errors
    /// If a file is damaged, or is of another model.
    pub fn values(&self, parameters: &[Parameter]) -> Result<Vec<Vec<f32>>, Error> {
        if self.is_sharded() {
            return self.whole(parameters);
        }
        let mut tensors = self.read(MODEL)?;
        let take = |Parameter { name, shape: expected }: &Parameter| {
            let why = match tensors.remove(name) {
                Some((found, values)) if found == *expected => return Ok(values),
                Some((found, _)) => format!("{name} has shape {found:?}, expected {expected:?}"),
                None => format!("no tensor {name}, expected one of shape {expected:?}"),
            };
            let file = self.path.join(MODEL);
            let context = format!("{} is of another model: {why}", file.display());
            Err(Error::new(Kind::Checkpoint, context))
        };
        parameters.iter().map(take).collect()
    }

    /// Whether ranks have written what their exchanges carry over.
    pub fn has_exchange(&self) -> bool {
        self.manifest.files.contains_key(&exchange_file(Rank(0)))
    }

    /// Returns the residuals and other state of `rank`'s exchange.
    ///
    /// # Errors
    /// If the file is damaged, or the checkpoint has no such rank.
    pub fn exchange(&self, rank: Rank) -> Result<Tensors, Error> {
        self.read(&exchange_file(rank))
    }

    /// A file's tensors, after its length and checksum were compared with the manifest.
    pub(super) fn read(&self, name: &str) -> Result<Tensors, Error> {
        let path = self.path.join(name);
        let Some(expected) = self.manifest.files.get(name) else {
            let world = self.manifest.progress.world;
            let context = format!("{} is not in the checkpoint, of {world} ranks", path.display());
            return Err(Error::new(Kind::Checkpoint, context));
        };
        let bytes = bytes(&path, expected.bytes).map_err(|why| corrupt(&path, &why))?;
        if bytes.len() as u64 != expected.bytes {
            let why = format!("{} bytes, expected {}", bytes.len(), expected.bytes);
            return Err(corrupt(&path, &why));
        }
        let found = checksum(&bytes);
        if found != expected.crc32 {
            let why = format!("checksum {found:#010x}, expected {:#010x}", expected.crc32);
            return Err(corrupt(&path, &why));
        }
        tensors_of(&bytes).map_err(|why| corrupt(&path, &why))
    }
}

/// Parses the tensors of a safetensors file.
///
/// # Errors
/// If it is damaged, or has a tensor that is not f32; the message is of one line.
pub fn tensors_of(bytes: &[u8]) -> Result<Tensors, String> {
    let parsed = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    check_keys(header(bytes))?;
    let mut tensors = Tensors::new();
    for (name, view) in parsed.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("tensor {name} is {:?}, expected F32", view.dtype()));
        }
        let (words, _) = view.data().as_chunks::<4>();
        let values = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        tensors.insert(name, (view.shape().to_vec(), values));
    }
    Ok(tensors)
}

/// The header of a safetensors file, after its length, which was checked.
fn header(bytes: &[u8]) -> &[u8] {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return bytes };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(rest.len());
    &rest[..length.min(rest.len())]
}

/// The bytes of a regular file of at most so many: whoever opens a pipe waits for a writer, and a
/// device may never end.
fn bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let said = |error: io::Error| error.to_string();
    let metadata = path.metadata().map_err(said)?;
    if !metadata.is_file() {
        return Err("no regular file".to_owned());
    }
    if metadata.len() > bytes_max {
        return Err(format!("{} bytes, expected {bytes_max} at most", metadata.len()));
    }
    // A file of holes may be longer than memory, and asking for more than there is would end the process.
    let mut bytes = Vec::new();
    let room =
        usize::try_from(metadata.len()).is_ok_and(|len| bytes.try_reserve_exact(len).is_ok());
    if !room {
        return Err(format!("{} bytes, more than there is memory", metadata.len()));
    }
    let file = fs::File::open(path).map_err(said)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(said)?;
    Ok(bytes)
}

const MANIFEST_BYTES_MAX: u64 = 1 << 28;
const HINT: &str = "give a folder step-NNNNNN, or the folder that holds them";

/// The newest checkpoint in `folder`, if there is any.
///
/// # Errors
/// If the folder cannot be read.
pub fn latest(folder: &Path) -> Result<Option<PathBuf>, Error> {
    let failed = |e| Error::io("list", folder, e);
    let mut newest = None;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("step-"));
        if let Some(step) = number.and_then(|number| number.parse::<u64>().ok())
            && entry.path().join(MANIFEST).is_file()
        {
            newest = newest.max(Some((step, entry.path())));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// The checkpoint that a user means by `path`: itself, or the newest in it.
///
/// # Errors
/// If there is none, or its manifest is damaged.
pub fn resolve(path: &Path) -> Result<Checkpoint, Error> {
    let newest = if path.is_dir() && !path.join(MANIFEST).exists() { latest(path)? } else { None };
    Checkpoint::open(newest.as_deref().unwrap_or(path))
}

pub(super) fn corrupt(path: &Path, why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let context = format!("corrupt checkpoint: {}: {why}", path.display());
    Error::new(Kind::Checkpoint, context).with_hint("go back to an earlier checkpoint")
}
