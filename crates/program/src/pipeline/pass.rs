//! Passes: one micro-batch through one chunk of the pipeline, in one direction.

use serde::{Deserialize, Serialize};

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From the data to the loss.
    Forward,
    /// From the loss to the gradients; with zero-bubble, only the gradients of inputs.
    Backward,
    /// The gradients of weights, if they have separate passes.
    Weight,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Forward, Kind::Backward, Kind::Weight];
}

/// One micro-batch through one chunk of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pass {
    /// The direction.
    pub kind: Kind,
    /// The micro-batch.
    pub micro_batch: usize,
    /// The chunk of the pipeline.
    pub chunk: usize,
}

impl Pass {
    pub(super) fn new(kind: Kind, micro_batch: usize, chunk: usize) -> Pass {
        Pass { kind, micro_batch, chunk }
    }
}
