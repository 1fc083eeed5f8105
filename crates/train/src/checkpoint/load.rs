//! Reading checkpoints, trusting nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use thinwire_model::check_keys;
use thinwire_server::{Location, Store};
use thinwire_wire::{Rank, checksum};

use super::PATIENCE;
use super::manifest::{FORMAT, MANIFEST_BYTES_MAX, Manifest};
use super::names::{MANIFEST, MODEL, STEP, Tensors, exchange_file, step_of};
use crate::Parameter;
use crate::error::{Error, Kind};

/// A checkpoint that was found and whose manifest is sound.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Address, for messages.
    path: PathBuf,
    /// Files of the checkpoint.
    store: Arc<dyn Store>,
    manifest: Manifest,
    crc32: u32,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: the folder or the `s3://BUCKET/PREFIX` that holds its manifest.
    ///
    /// # Errors
    /// If the manifest is missing or damaged.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        Checkpoint::of(Location::from(path).store()?, path)
    }

    pub(super) fn of(store: Arc<dyn Store>, path: &Path) -> Result<Checkpoint, Error> {
        let text = store.read("", MANIFEST, MANIFEST_BYTES_MAX);
        let text = text.map_err(|why| missing(path, &why))?;
        let file = path.join(MANIFEST);
        if let Some(format) = Manifest::newer_format(&text) {
            let context = format!("{} has format {format}, expected {FORMAT}", file.display());
            let error = Error::new(Kind::Checkpoint, context);
            return Err(error.with_hint("a newer thinwire has written it: use that one"));
        }
        let manifest = Manifest::from_text(&text).map_err(|why| corrupt(&file, &why))?;
        Ok(Checkpoint { path: path.to_owned(), store, manifest, crc32: checksum(&text) })
    }

    /// Manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checksum of the manifest, and so of the whole checkpoint.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// The folder, or the `s3://BUCKET/PREFIX`.
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
        let folder = self.manifest.folder.as_deref().unwrap_or_default();
        let bytes = self.store.read(folder, name, expected.bytes).map_err(|why| {
            let context = format!("cannot read the checkpoint: {}", one_line(&why));
            Error::new(Kind::Checkpoint, context).with_hint("go back to an earlier checkpoint")
        })?;
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

const HINT: &str = "give a folder step-NNNNNN, or the place that holds them";

/// The newest checkpoint in `place`, a folder or `s3://BUCKET/PREFIX`, if there is any.
///
/// # Errors
/// If the place cannot be read.
pub fn latest(place: &Path) -> Result<Option<PathBuf>, Error> {
    let newest = newest(&*Location::from(place).store_within(PATIENCE)?)?;
    Ok(newest.map(|name| place.join(name)))
}

/// Returns the name of the newest checkpoint in a store.
pub(super) fn newest(store: &dyn Store) -> Result<Option<String>, Error> {
    let files = store.list(STEP).map_err(|why| Error::new(Kind::Io, one_line(&why)))?;
    let names = files.iter().filter_map(|file| file.strip_suffix(MANIFEST)?.strip_suffix('/'));
    let newest = names.filter_map(|name| Some((step_of(name)?, name))).max();
    Ok(newest.map(|(_, name)| name.to_owned()))
}

/// The checkpoint that a user means by `path`: itself, or the newest in it.
///
/// # Errors
/// If there is none, or its manifest is damaged.
pub fn resolve(path: &Path) -> Result<Checkpoint, Error> {
    let location = Location::from(path);
    let has_many = match &location {
        Location::Folder(path) => path.is_dir() && !path.join(MANIFEST).exists(),
        Location::Bucket(_) => {
            let found = location.store_within(PATIENCE)?.list(MANIFEST);
            found.map_err(|why| missing(path, &why))?.is_empty()
        }
    };
    let newest = if has_many { latest(path)? } else { None };
    Checkpoint::open(newest.as_deref().unwrap_or(path))
}

fn missing(path: &Path, why: &str) -> Error {
    let context = format!("no checkpoint at {}: {}", path.display(), one_line(why));
    Error::new(Kind::Missing, context).with_hint(HINT)
}

pub(super) fn corrupt(path: &Path, why: &str) -> Error {
    let context = format!("corrupt checkpoint: {}: {}", path.display(), one_line(why));
    Error::new(Kind::Checkpoint, context).with_hint("go back to an earlier checkpoint")
}

/// Returns the first line of a reason, which may quote what another program has answered.
fn one_line(why: &str) -> &str {
    why.lines().next().unwrap_or_default()
}
