//! A GPT on bytes: the model that `thinwire train` builds from its own flags.
//!
//! Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3: layer norm before each
//! part, exact GELU, learned positions, residual projections with smaller initial values. Queries, keys and
//! values have separate weights. The head also has its own weight: the gradient of a shared table would be
//! complete only at the end of the backward pass, and with 256 symbols, sharing saves almost nothing.

use super::Composer;
use super::sizes::{check_layers, check_sequence, sizes};
use super::transformer::head_size;
use crate::{Activation, Attention, Embedding, Error, Graph, Initial, Linear, TensorId};

/// Number of symbols.
const BYTES: usize = 256;
/// The standard deviation of weights before the first step.
const DEVIATION: f64 = 0.02;

/// The sizes of a GPT on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Blocks.
    pub layers: usize,
    /// Features of a byte; the feed-forward part has four times as many.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Largest number of bytes of a sequence.
    pub positions: usize,
}

/// Pattern of the name of a GPT on bytes of any size.
pub(super) const SPELLED: &str = "bytes:layers=N,width=N,heads=N,positions=N";

/// Returns the model of a name that contains its sizes, as [`SPELLED`]; `None` if the name has another form.
pub(super) fn spelled(name: &str) -> Option<Result<Bytes, Error>> {
    let found = sizes("bytes", name, ["layers", "width", "heads", "positions"])?;
    Some(found.and_then(|[layers, hidden, heads, positions]| {
        check_layers(layers)?;
        Ok(Bytes { layers, hidden, heads, positions })
    }))
}

impl Bytes {
    /// Returns the graph for a micro-batch of `batch` sequences of `sequence` bytes.
    ///
    /// # Errors
    /// If sizes contradict each other.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        check_sequence(sequence, self.positions)?;
        let mut composer = Composer::default();
        let [tokens, positions, targets] = composer.text(batch, sequence);
        let mut x =
            composer.block("embedding", |composer| self.embedding(composer, tokens, positions))?;
        for layer in 0..self.layers {
            x = composer.block(format!("block.{layer}"), |composer| self.layer(composer, x))?;
        }
        composer.block("head", |composer| {
            let weight = composer.weight("weight", &[self.hidden, BYTES]);
            let x = composer.layer_norm("norm", x)?;
            let logits = composer.apply("logits", Linear::plain(), &[x, weight])?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }

    fn embedding(
        &self,
        composer: &mut Composer,
        tokens: TensorId,
        positions: TensorId,
    ) -> Result<TensorId, Error> {
        let table = composer.weight("table", &[BYTES, self.hidden]);
        let places = composer.weight("positions", &[self.positions, self.hidden]);
        let token = composer.apply("token", Embedding::plain(), &[table, tokens])?;
        let place = composer.apply("position", Embedding::plain(), &[places, positions])?;
        composer.add("add", token, place)
    }

    fn layer(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let mixed = composer.scope("attention", |composer| self.attention(composer, x))?;
        let x = composer.add("attention.add", x, mixed)?;
        let fed = composer.scope("feed", |composer| {
            let normal = composer.layer_norm("norm", x)?;
            let up = composer.linear("up", normal, 4 * self.hidden)?;
            let active = composer.apply("gelu", Activation::GeluErf, &[up])?;
            self.residual(composer, "down", active)
        })?;
        composer.add("feed.add", x, fed)
    }

    fn attention(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let head_size = head_size(self.hidden, self.heads)?;
        let normal = composer.layer_norm("norm", x)?;
        let mut part = |name: &str| composer.linear(name, normal, self.hidden);
        let parts = [part("query")?, part("key")?, part("value")?];
        let attention = Attention { head_size, queries_per_key: 1, causal: true };
        let mixed = composer.apply("mixed", attention, &parts)?;
        self.residual(composer, "output", mixed)
    }

    /// Adds a linear layer whose result is one of the 2 · `layers` terms of the residual sum.
    fn residual(
        &self,
        composer: &mut Composer,
        name: &str,
        x: TensorId,
    ) -> Result<TensorId, Error> {
        let initial = Initial::Normal(DEVIATION / (2.0 * self.layers as f64).sqrt());
        let shape = [composer.features(x), self.hidden];
        let weight = composer.parameter(&format!("{name}.weight"), &shape, initial);
        let bias = composer.parameter(&format!("{name}.bias"), &[self.hidden], Initial::Zeros);
        composer.apply(name, Linear::biased(), &[x, weight, bias])
    }
}
