//! What published trainers keep of a transformer's layer between forward and backward.
//!
//! Formulas of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//! table 2, in half precision, with dropout's masks of one byte. They describe other programs:
//! what a plan of ours keeps follows from the model's graph.

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

impl Layer {
    /// Bytes of one layer on one device, without or with sequence parallelism.
    pub fn kept_bytes(&self, keep: Keep, sequence_parallel: bool) -> f64 {
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

    /// Bytes of a stage's layers with one-forward-one-backward: the first of `stages` stages holds
    /// as many micro-batches as there are stages, which makes it a whole model's worth of layers;
    /// with several chunks a stage somewhat more.
    pub fn first_stage_bytes(&self, layers: f64, stages: f64, chunks: f64, keep: Keep) -> f64 {
        let interleaved = if chunks > 1.0 { 1.0 + (stages - 1.0) / (stages * chunks) } else { 1.0 };
        layers * interleaved * self.kept_bytes(keep, true)
    }
}
