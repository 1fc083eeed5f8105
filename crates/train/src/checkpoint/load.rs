//! Reads checkpoints, and checks all of their bytes.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use thinwire_checkpoint::{Error, Kind, Location, PATIENCE, Sealed};
use thinwire_model::check_keys;
use thinwire_wire::Rank;

use super::files::{MODEL, Tensors, exchange_file};
use super::manifest::Progress;
use crate::Parameter;

/// A checkpoint with a valid manifest.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    sealed: Sealed<Progress>,
    path: PathBuf,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: the folder or the `s3://BUCKET/PREFIX` that holds its manifest.
    ///
    /// # Errors
    /// If the manifest is missing or damaged.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        Ok(Sealed::open(Location::from(path).store()?, "")?.into())
    }

    /// Returns the checkpoint as a type of crate `checkpoint`.
    pub fn sealed(&self) -> &Sealed<Progress> {
        &self.sealed
    }

    /// Returns the progress of the training.
    pub fn progress(&self) -> &Progress {
        &self.sealed.manifest().record
    }

    /// Returns the checksum of the manifest, and so of the whole checkpoint.
    pub fn crc32(&self) -> u32 {
        self.sealed.crc32()
    }

    /// Returns the folder, or the `s3://BUCKET/PREFIX`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn has(&self, name: &str) -> bool {
        self.sealed.manifest().files.contains_key(name)
    }

    /// Returns whether each rank has written its own parts, as under a plan.
    pub fn is_sharded(&self) -> bool {
        !self.has(MODEL)
    }

    /// Returns the values of `parameters`, even if they consist of parts from several ranks.
    ///
    /// # Errors
    /// If a file is damaged, or belongs to another model.
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
            let file = self.sealed.path(MODEL);
            let context = format!("{} is of another model: {why}", file.display());
            Err(Error::new(Kind::Damaged, context))
        };
        parameters.iter().map(take).collect()
    }

    /// Returns whether ranks have written the state of their exchanges.
    pub fn has_exchange(&self) -> bool {
        self.has(&exchange_file(Rank(0)))
    }

    /// Returns the residuals and other state of `rank`'s exchange.
    ///
    /// # Errors
    /// If the file is damaged, or the checkpoint has no such rank.
    pub fn exchange(&self, rank: Rank) -> Result<Tensors, Error> {
        self.read(&exchange_file(rank))
    }

    /// Returns a file's tensors, after comparing its length and checksum with the manifest.
    pub(super) fn read(&self, name: &str) -> Result<Tensors, Error> {
        if !self.has(name) {
            let (path, world) = (self.sealed.path(name), self.progress().world);
            let context =
                format!("{} is not in the checkpoint, which is of {world} ranks", path.display());
            return Err(Error::new(Kind::Damaged, context));
        }
        let tensors = tensors_of(&self.sealed.read(name)?);
        tensors.map_err(|why| self.damaged(name, &why))
    }

    pub(super) fn damaged(&self, name: &str, why: &str) -> Error {
        self.sealed.damaged(name, why)
    }
}

impl From<Sealed<Progress>> for Checkpoint {
    fn from(sealed: Sealed<Progress>) -> Checkpoint {
        Checkpoint { path: sealed.path(""), sealed }
    }
}

/// Returns the checkpoint that a user means by `path`: the checkpoint at this path, or the newest one in
/// this folder.
///
/// # Errors
/// If there is no checkpoint, or its manifest is damaged.
pub fn resolve(path: &Path) -> Result<Checkpoint, Error> {
    Ok(Sealed::resolve(&Location::from(path), PATIENCE)?.into())
}

/// Parses the tensors of a safetensors file.
///
/// # Errors
/// If it is damaged, or has a tensor that is not f32; the message is one line.
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

/// Returns the header of a safetensors file, after its length, which was checked before.
fn header(bytes: &[u8]) -> &[u8] {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return bytes };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(rest.len());
    &rest[..length.min(rest.len())]
}
