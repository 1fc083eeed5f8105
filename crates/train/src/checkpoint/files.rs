//! Files of tensors in a checkpoint: their names and their format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView};
use thinwire_checkpoint::{Draft, Error, Kind, Manifest};
use thinwire_wire::Rank;

use super::manifest::Progress;

/// Named tensors: shape, and elements in row-major order.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

pub(super) const MODEL: &str = "model.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
/// Endings of the optimiser's tensors.
const MEAN: &str = ".mean";
const SQUARE: &str = ".square";
/// Description of the optimiser's file.
const OF_OPTIMIZER: &str = "AdamW: running means of gradients and of their squares";

/// Writes the state that one rank's exchange keeps between steps.
///
/// # Errors
/// If the file cannot be written.
pub fn write_exchange(draft: &Draft, rank: Rank, tensors: &Tensors) -> Result<(), Error> {
    write(draft, &exchange_file(rank), tensors, "what the exchange of gradients carries over")
}

/// Writes a rank's parts of parameters and of the optimiser's state.
///
/// # Errors
/// If the file cannot be written.
pub fn write_shard(draft: &Draft, rank: Rank, tensors: &Tensors) -> Result<(), Error> {
    write(draft, &shard_file(rank), tensors, "parts of a model, by where they begin")
}

/// Writes parameters and the optimiser's state of a rank that has all of them, under the names that
/// [`write_shard`] would give them as parts.
///
/// # Errors
/// If a file cannot be written.
pub fn write_whole(draft: &Draft, tensors: &Tensors, description: &str) -> Result<(), Error> {
    let all = tensors.keys().map(|part| tensor_of(part)).collect::<BTreeSet<_>>();
    let of_optimizer = |name: &str| {
        let of = name.strip_suffix(MEAN).or(name.strip_suffix(SQUARE));
        of.is_some_and(|parameter| all.contains(parameter))
    };
    let named = tensors.iter().map(|(part, tensor)| (tensor_of(part), tensor));
    let (optimizer, model): (Vec<_>, Vec<_>) = named.partition(|(name, _)| of_optimizer(name));
    write(draft, MODEL, model, description)?;
    write(draft, OPTIMIZER, optimizer, OF_OPTIMIZER)
}

/// Reads all files of a draft back, and returns the manifest with their lengths and checksums. Only rank 0
/// calls this, when all ranks have written their files.
///
/// # Errors
/// If a file is missing or cannot be read back.
pub fn seal(draft: &Draft, progress: Progress) -> Result<Manifest<Progress>, Error> {
    let ranks = || (0..progress.world).map(Rank);
    let model: Vec<String> = match draft.has(MODEL)? {
        true => vec![MODEL.to_owned(), OPTIMIZER.to_owned()],
        false => ranks().map(shard_file).collect(),
    };
    // Parts of a model may have been written by nobody who exchanges gradients.
    let exchanged = model[0] == MODEL || draft.has(&exchange_file(Rank(0)))?;
    let exchanges = ranks().filter(|_| exchanged).map(exchange_file);
    let files = draft.read_back(model.into_iter().chain(exchanges))?;
    Ok(Manifest::new(progress, files))
}

/// Seals the checkpoint and gives it its name. Returns its path.
///
/// # Errors
/// If a file is missing or cannot be read back, or the manifest cannot be written.
pub fn commit(draft: &Draft, progress: Progress) -> Result<PathBuf, Error> {
    let step = progress.step;
    Ok(draft.publish(step, seal(draft, progress)?)?.unwrap_or_default())
}

fn write<'a, N: AsRef<str> + Ord + Display>(
    draft: &Draft,
    name: &str,
    tensors: impl IntoIterator<Item = (N, &'a (Vec<usize>, Vec<f32>))>,
    description: &str,
) -> Result<(), Error> {
    let path = draft.path(name);
    let invalid = |e| Error::new(Kind::Invalid, format!("cannot write {}: {e}", path.display()));
    let view = |(name, (shape, values)): (N, &'a (Vec<usize>, Vec<f32>))| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
        view.map(|view| (name, view))
    };
    let tensors = tensors.into_iter().map(view).collect::<Result<Vec<_>, _>>();
    let tensors = tensors.map_err(invalid)?;
    let metadata = [("format", "pt"), ("writer", "thinwire"), ("description", description)];
    let bytes = safetensors::serialize(tensors, None).map_err(invalid)?;
    let (header, body) = described(&bytes, &BTreeMap::from(metadata));
    draft.write(name, &[&header, body])
}
/// Returns the header of a file of tensors with these metadata, and the bytes of the tensors. The library
/// keeps metadata in a map without an order, so that two files of the same tensors would differ.
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

/// Returns the name of the file with a rank's residuals.
pub(super) fn exchange_file(rank: Rank) -> String {
    format!("exchange-{}.safetensors", rank.0)
}

/// Returns the name of the file with a rank's parts under a plan.
pub(super) fn shard_file(rank: Rank) -> String {
    format!("shard-{}.safetensors", rank.0)
}

/// Returns the name of a part of a tensor in a file: the tensor's name, and the position at which the part
/// begins.
pub fn part_name(tensor: &str, start: &[usize]) -> String {
    let start: Vec<String> = start.iter().map(usize::to_string).collect();
    format!("{tensor}@{}", start.join(","))
}

/// Returns the name of the tensor to which a part belongs.
fn tensor_of(part: &str) -> &str {
    part.rsplit_once('@').map_or(part, |(tensor, _)| tensor)
}
