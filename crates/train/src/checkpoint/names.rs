//! Names of a checkpoint's files, and of tensors in them.

use std::collections::BTreeMap;

use thinwire_wire::Rank;

/// Named tensors: shape, and elements in row-major order.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const MODEL: &str = "model.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
/// Endings of the optimiser's tensors.
pub(super) const MEAN: &str = ".mean";
pub(super) const SQUARE: &str = ".square";

/// Initial of the names of checkpoints.
pub(super) const STEP: &str = "step-";

/// Returns the name of a step's checkpoint.
pub(super) fn step_name(step: u64) -> String {
    format!("{STEP}{step:06}")
}

/// Returns the step of a checkpoint of this name.
pub(super) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(STEP)?.parse().ok()
}

/// Returns whether a folder in a checkpoint may have this name.
pub(super) fn is_token(name: &str) -> bool {
    name.len() >= 16 && name.bytes().all(|letter| letter.is_ascii_hexdigit())
}

/// Returns the file of a rank's residuals.
pub(super) fn exchange_file(rank: Rank) -> String {
    format!("exchange-{}.safetensors", rank.0)
}

/// Returns the file of a rank's parts under a plan.
pub(super) fn shard_file(rank: Rank) -> String {
    format!("shard-{}.safetensors", rank.0)
}

/// Returns the name of a part of a tensor in a file: the tensor's name, and where the part begins.
pub fn part_name(tensor: &str, start: &[usize]) -> String {
    let start: Vec<String> = start.iter().map(usize::to_string).collect();
    format!("{tensor}@{}", start.join(","))
}

/// Returns the tensor that a part belongs to.
pub(super) fn tensor_of(part: &str) -> &str {
    part.rsplit_once('@').map_or(part, |(tensor, _)| tensor)
}
