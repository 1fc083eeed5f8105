//! Training frozen in files, to go on bit for bit.
//!
//! A checkpoint is a folder `step-000123`, in a folder or in a bucket of an object store: `manifest.json`, `model.safetensors` (the parameters, as
//! any tool reads them), `optimizer.safetensors`, and one `exchange-RANK.safetensors` per rank with
//! what the exchange carries over between steps. Under a plan for the whole model it has one
//! `shard-RANK.safetensors` per rank instead. It is written under another name and renamed when
//! it is whole (in a bucket, its manifest comes last): rank 0 calls [`Draft::create`], the others [`Draft::open`] once it has; every rank
//! writes its exchange, rank 0 also model and optimiser; when all have, rank 0 commits. The
//! manifest holds length and checksum of each file. Laws: what is loaded is what was saved, bit for
//! bit, or there is an error that names the file; two saves of one state are equal byte by byte.

mod bucket;
mod files;
mod load;
mod manifest;
mod names;
mod place;
mod shards;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use safetensors::tensor::{Dtype, TensorView};
use thinwire_server::Location;
use thinwire_wire::Rank;

use crate::error::{Error, Kind};
use files::Files;
use names::{MEAN, MODEL, OPTIMIZER, SQUARE, exchange_file};

pub(crate) use load::tensors_of;
pub use load::{Checkpoint, latest, resolve};
pub use manifest::{FORMAT, FileCheck, Manifest, Progress};
pub use names::{Tensors, part_name};
pub use place::clean;
pub use shards::Wanted;

/// Description of the optimiser's file.
const OF_OPTIMIZER: &str = "AdamW: running means of gradients and of their squares";

/// Longest time for a request to a bucket that holds up a training, without that for the bytes that it sends: a
/// launcher waits for ranks about three times as long after a signal.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A checkpoint that is being written.
#[derive(Debug)]
pub struct Draft(Files);

impl Draft {
    /// Starts the checkpoint of `step` in `place`, a folder or `s3://BUCKET/PREFIX`; rank 0 alone does this.
    ///
    /// # Errors
    /// If the folder cannot be made, or the bucket has no address or credentials.
    pub fn create(place: &Path, step: u64) -> Result<Draft, Error> {
        let draft = Draft::open(place, step, &bucket::new_token()?)?;
        draft.0.create()?;
        Ok(draft)
    }

    /// Joins the checkpoint that rank 0 has started, whose draft has this token.
    ///
    /// # Errors
    /// If a bucket has no address or credentials.
    pub fn open(place: &Path, step: u64, token: &str) -> Result<Draft, Error> {
        let name = names::step_name(step);
        Ok(Draft(match Location::from(place) {
            Location::Folder(folder) => Files::in_folder(&folder, &name),
            bucket @ Location::Bucket(_) => {
                Files::in_bucket(bucket.store_within(PATIENCE)?, &name, token)
            }
        }))
    }

    /// Returns the name by which other ranks join the draft; empty in a folder, which has one draft of a step.
    pub fn token(&self) -> &str {
        self.0.token()
    }

    /// Removes what has been written so far; rank 0 alone does this, when it cannot be completed. Nothing is removed
    /// from a bucket once [`Draft::publish`] has begun: a request that fails may have been carried out.
    pub fn discard(&self) {
        self.0.discard();
    }

    /// Starts files in memory, for [`Draft::into_files`] and another rank's [`Draft::add`].
    pub fn in_memory() -> Draft {
        Draft(Files::in_memory())
    }

    /// Returns the files of a draft in memory, by name.
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.0.into_memory()
    }

    /// Writes a file that another rank has made in memory.
    ///
    /// # Errors
    /// If no checkpoint has a file of that name, or it cannot be written.
    pub fn add(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        match place::is_ours(name) {
            true => self.0.write(name, &[bytes]),
            false => Err(Error::new(Kind::Invalid, format!("'{name}' is no file of a checkpoint"))),
        }
    }

    /// Writes what one rank's exchange carries over.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_exchange(&self, rank: Rank, tensors: &Tensors) -> Result<(), Error> {
        self.write(&exchange_file(rank), tensors, "what the exchange of gradients carries over")
    }

    /// Seals the checkpoint and gives it its name; rank 0 alone does this, when all have written.
    ///
    /// # Errors
    /// If a file is missing or cannot be read back, or the manifest cannot be written.
    pub fn commit(&self, progress: Progress) -> Result<PathBuf, Error> {
        self.publish(self.sealed(progress)?)
    }

    /// Reads all files back, and returns the manifest with their lengths and checksums.
    ///
    /// # Errors
    /// If a file is missing or cannot be read back.
    pub fn sealed(&self, progress: Progress) -> Result<Manifest, Error> {
        let ranks = || (0..progress.world).map(Rank);
        let model: Vec<String> = match self.0.has(MODEL) {
            true => vec![MODEL.to_owned(), OPTIMIZER.to_owned()],
            false => ranks().map(names::shard_file).collect(),
        };
        // Parts of a model may have been written by nobody who exchanges gradients.
        let exchanged = model[0] == MODEL || self.0.has(&exchange_file(Rank(0)));
        let exchanges = ranks().filter(|_| exchanged).map(exchange_file);
        let names: Vec<String> = model.into_iter().chain(exchanges).collect();
        let check = |name: String| self.0.check(&name).map(|check| (name, check));
        let files = names.into_iter().map(check).collect::<Result<_, Error>>()?;
        Ok(Manifest { format: FORMAT, progress, files, folder: None })
    }

    /// Writes the manifest of [`Draft::sealed`] and gives the checkpoint its name. A checkpoint of the same step is
    /// replaced; files beside it that are none of a checkpoint stay.
    ///
    /// # Errors
    /// If the manifest cannot be written, or the checkpoint cannot get its name.
    pub fn publish(&self, manifest: Manifest) -> Result<PathBuf, Error> {
        self.0.publish(manifest)
    }

    /// Writes a rank's parts of parameters and of the optimiser's state.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_shard(&self, rank: Rank, tensors: &Tensors) -> Result<(), Error> {
        self.write(&names::shard_file(rank), tensors, "parts of a model, by where they begin")
    }

    /// Writes parameters and the optimiser's state of a rank that has all of them, under the names that
    /// [`Draft::write_shard`] would give them as parts.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_whole(&self, tensors: &Tensors, description: &str) -> Result<(), Error> {
        let all = tensors.keys().map(|part| names::tensor_of(part)).collect::<BTreeSet<_>>();
        let of_optimizer = |name: &str| {
            let of = name.strip_suffix(MEAN).or(name.strip_suffix(SQUARE));
            of.is_some_and(|parameter| all.contains(parameter))
        };
        let named = tensors.iter().map(|(part, tensor)| (names::tensor_of(part), tensor));
        let (optimizer, model): (Vec<_>, Vec<_>) = named.partition(|(name, _)| of_optimizer(name));
        self.write(MODEL, model, description)?;
        self.write(OPTIMIZER, optimizer, OF_OPTIMIZER)
    }

    fn write<'a, N: AsRef<str> + Ord + Display>(
        &self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, &'a (Vec<usize>, Vec<f32>))>,
        description: &str,
    ) -> Result<(), Error> {
        let path = self.0.path(name);
        let invalid =
            |e| Error::new(Kind::Invalid, format!("cannot write {}: {e}", path.display()));
        let view = |(name, (shape, values)): (N, &'a (Vec<usize>, Vec<f32>))| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
            view.map(|view| (name, view))
        };
        let tensors = tensors.into_iter().map(view).collect::<Result<Vec<_>, _>>();
        let tensors = tensors.map_err(invalid)?;
        let metadata = [("format", "pt"), ("writer", "thinwire"), ("description", description)];
        let bytes = safetensors::serialize(tensors, None).map_err(invalid)?;
        let (header, body) = described(&bytes, &BTreeMap::from(metadata));
        self.0.write(name, &[&header, body])
    }
}

/// The header of a file of tensors with these metadata, and the tensors. The library keeps metadata in
/// a map without an order, and two files of the same tensors would differ.
fn described<'a>(bytes: &'a [u8], metadata: &BTreeMap<&str, &str>) -> (Vec<u8>, &'a [u8]) {
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a file begins with a length");
    let (header, body) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let tensors = header.trim_ascii().strip_prefix(b"{").expect("a header is an object");
    let metadata = serde_json::to_string(metadata).expect("text is text");
    let comma = if tensors == b"}" { "" } else { "," };
    let mut header = [format!("{{\"__metadata__\":{metadata}{comma}").as_bytes(), tensors].concat();
    header.resize(header.len().next_multiple_of(8), b' ');
    ([&(header.len() as u64).to_le_bytes()[..], &header].concat(), body)
}

#[cfg(test)]
mod tests;
