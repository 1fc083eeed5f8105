//! GPT: a decoder of equal blocks, as in GPT-2 and GPT-3.
//!
//! Radford et al., "Language Models are Unsupervised Multitask Learners"; Brown et al., "Language Models are
//! Few-Shot Learners", table 2.1. The head is the transposed embedding.

use super::sizes::{check_layers, check_sequence, sizes};
use super::transformer::{SelfAttention, feed_forward};
use super::{AttentionKind, Composer};
use crate::{Embedding, Error, Graph, MatMul, TensorId};

/// The sizes of a GPT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpt {
    /// Blocks.
    pub layers: usize,
    /// Features of a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features within the feed-forward part; usually four times `hidden`.
    pub feed_forward: usize,
    /// Size of the vocabulary, in tokens.
    pub vocabulary: usize,
    /// Largest number of tokens of a sequence.
    pub positions: usize,
    /// Whether attention is one fused operator or several operators.
    pub attention: AttentionKind,
    /// Rate of the dropouts of embeddings, of attention's weights if attention is not fused, and of the
    /// result that each half of a block adds.
    pub dropout: f64,
}

/// Returns the model with this name: gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b,
/// gpt3-13b, gpt3-175b or gpt-1t. Attention is fused, and there is no dropout.
pub fn named(name: &str) -> Option<Gpt> {
    let (layers, hidden, heads) = match name {
        "gpt2" => (12, 768, 12),
        "gpt2-medium" => (24, 1024, 16),
        "gpt2-large" => (36, 1280, 20),
        "gpt2-xl" => (48, 1600, 25),
        "gpt3-1.3b" => (24, 2048, 16),
        "gpt3-2.7b" => (32, 2560, 32),
        "gpt3-6.7b" => (32, 4096, 32),
        "gpt3-13b" => (40, 5120, 40),
        "gpt3-175b" => (96, 12288, 96),
        "gpt-1t" => (128, 25600, 160),
        _ => return None,
    };
    // The larger ones with a vocabulary that can be cut.
    let (vocabulary, positions) = match name.starts_with("gpt2") {
        true => (50257, 1024),
        false => (51200, 2048),
    };
    let (attention, dropout) = (AttentionKind::Fused, 0.0);
    let feed_forward = 4 * hidden;
    Some(Gpt { layers, hidden, heads, feed_forward, vocabulary, positions, attention, dropout })
}

/// Pattern of the name of a GPT of any size.
pub(super) const SPELLED: &str = "gpt:layers=N,width=N,heads=N,vocabulary=N,positions=N";

/// Returns the model of a name that contains its sizes, as [`SPELLED`]; `None` if the name has another form.
/// Attention is fused, there is no dropout, and feed-forward parts are four times as wide.
pub(super) fn spelled(name: &str) -> Option<Result<Gpt, Error>> {
    let found = sizes("gpt", name, ["layers", "width", "heads", "vocabulary", "positions"])?;
    let (attention, dropout) = (AttentionKind::Fused, 0.0);
    Some(found.and_then(|[layers, hidden, heads, vocabulary, positions]| {
        check_layers(layers)?;
        let feed_forward = 4 * hidden;
        Ok(Gpt { layers, hidden, heads, feed_forward, vocabulary, positions, attention, dropout })
    }))
}

impl Gpt {
    /// Returns the graph for a micro-batch of `batch` sequences of `sequence` tokens.
    ///
    /// # Errors
    /// If sizes contradict each other.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        check_sequence(sequence, self.positions)?;
        let mut composer = Composer::default();
        let [tokens, positions, targets] = composer.text(batch, sequence);
        let (table, mut x) =
            composer.block("embedding", |composer| self.embedding(composer, tokens, positions))?;
        for layer in 0..self.layers {
            x = composer.block(format!("block.{layer}"), |composer| self.layer(composer, x))?;
        }
        composer.block("head", |composer| {
            let x = composer.layer_norm("norm", x)?;
            let logits = composer.apply("logits", MatMul::new("bsn", "vn", "bsv"), &[x, table])?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }

    /// Returns the table of tokens, and the features of these tokens.
    fn embedding(
        &self,
        composer: &mut Composer,
        tokens: TensorId,
        positions: TensorId,
    ) -> Result<(TensorId, TensorId), Error> {
        let table = composer.weight("token.weight", &[self.vocabulary, self.hidden]);
        let places = composer.weight("position.weight", &[self.positions, self.hidden]);
        let token = composer.apply("token", Embedding::plain(), &[table, tokens])?;
        let place = composer.apply("position", Embedding::plain(), &[places, positions])?;
        let x = composer.add("add", token, place)?;
        Ok((table, composer.dropout("dropout", x, self.dropout)?))
    }

    fn layer(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let Gpt { heads, attention: kind, dropout, .. } = *self;
        let attention = SelfAttention { heads, causal: true, kind, dropout };
        let mixed = composer.scope("attention", |composer| {
            let normal = composer.layer_norm("norm", x)?;
            let mixed = attention.build(composer, normal)?;
            composer.dropout("dropout", mixed, dropout)
        })?;
        let x = composer.add("attention.add", x, mixed)?;
        let fed = composer.scope("mlp", |composer| {
            let normal = composer.layer_norm("norm", x)?;
            let fed = feed_forward(composer, normal, self.feed_forward)?;
            composer.dropout("dropout", fed, dropout)
        })?;
        composer.add("mlp.add", x, fed)
    }
}
