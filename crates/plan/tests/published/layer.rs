//! What published trainers keep of a transformer's layer between forward and backward.
//!
//! Formulas of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//! table 2, in half precision, with dropout's masks of one byte. They describe other programs:
//! what a plan of ours keeps follows from the model's graph. Law: with [`super::Keeping::MEGATRON`]
//! the graph gives the same figures.

/// A transformer's layer on some devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Tokens of a sequence.
    pub sequence: f64,
    /// Sequences of a micro-batch.
    pub batch: f64,
    /// Features.
    pub hidden: f64,
    /// Attention heads.
    pub heads: f64,
    /// Devices of tensor parallelism.
    pub tensor: f64,
}

/// What is kept of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Everything.
    All,
    /// All but attention's scores, which are computed again.
    Selected,
    /// Its input alone.
    Input,
}

/// How layers are dealt out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pipeline {
    /// Layers of the model.
    pub layers: f64,
    /// Stages.
    pub stages: f64,
    /// Chunks of a stage.
    pub chunks: f64,
    /// Tokens that there are.
    pub vocabulary: f64,
}

impl Layer {
    /// Bytes of one layer on one device, without or with sequence parallelism.
    pub fn activation_bytes(&self, keep: Keep, sequence_parallel: bool) -> f64 {
        let Layer { sequence, batch, hidden, heads, tensor } = *self;
        let whole = sequence * batch * hidden;
        let scores = 5.0 * heads * sequence / hidden;
        let around = if sequence_parallel { 10.0 / tensor } else { 10.0 };
        match keep {
            Keep::All => whole * (around + 24.0 / tensor + scores / tensor),
            Keep::Selected => whole * (around + 24.0 / tensor),
            Keep::Input if sequence_parallel => 2.0 * whole / tensor,
            Keep::Input => 2.0 * whole,
        }
    }

    /// Bytes of the first stage's devices (sections 4.2.3 and 4.3): with one-forward-one-backward it
    /// holds as many micro-batches as there are stages, which makes it a whole model's worth of
    /// layers, with several chunks a stage somewhat more, and as many masks of the embedding. A
    /// stage that is the only one also has the last norm and the logits, these in single precision.
    pub fn first_stage_bytes(
        &self,
        pipeline: &Pipeline,
        keep: Keep,
        sequence_parallel: bool,
    ) -> f64 {
        let Pipeline { layers, stages, chunks, vocabulary } = *pipeline;
        let Layer { sequence, batch, hidden, tensor, .. } = *self;
        let part = sequence * batch * hidden / if sequence_parallel { tensor } else { 1.0 };
        let logits = 4.0 * sequence * batch * vocabulary / tensor;
        let interleaved = if chunks > 1.0 { 1.0 + (stages - 1.0) / (stages * chunks) } else { 1.0 };
        let end = if stages == 1.0 { 4.0 * part + logits } else { 0.0 };
        layers * interleaved * self.activation_bytes(keep, sequence_parallel) + stages * part + end
    }
}
