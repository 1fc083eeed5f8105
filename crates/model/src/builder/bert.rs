//! BERT: an encoder that predicts masked tokens.
//!
//! Devlin et al., "BERT". Norms follow the residual sums, and the head's weight is the transposed
//! embedding.

use super::sizes::{check_layers, check_sequence, sizes};
use super::transformer::{SelfAttention, feed_forward};
use super::{AttentionKind, Composer};
use crate::{Activation, Element, Embedding, Error, Graph, Initial, MatMul, TensorId};

/// The sizes of a BERT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bert {
    /// Blocks.
    pub layers: usize,
    /// Features of a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features within the feed-forward part.
    pub feed_forward: usize,
    /// Size of the vocabulary, in tokens.
    pub vocabulary: usize,
    /// Largest number of tokens of a sequence.
    pub positions: usize,
    /// Whether attention is one fused operator or several operators.
    pub attention: AttentionKind,
}

/// Number of segments to which a token may belong.
const SEGMENTS: usize = 2;

/// Returns the model with this name.
pub fn named(name: &str) -> Option<Bert> {
    let (layers, hidden, heads) = match name {
        "bert-base" => (12, 768, 12),
        "bert-large" => (24, 1024, 16),
        _ => return None,
    };
    let (feed_forward, attention) = (4 * hidden, AttentionKind::Fused);
    Some(Bert { layers, hidden, heads, feed_forward, vocabulary: 30522, positions: 512, attention })
}

/// Pattern of the name of a BERT of any size.
pub(super) const SPELLED: &str = "bert:layers=N,width=N,heads=N,vocabulary=N,positions=N";

/// Returns the model of a name that contains its sizes, as [`SPELLED`]; `None` if the name has another form.
/// Feed-forward parts are four times as wide.
pub(super) fn spelled(name: &str) -> Option<Result<Bert, Error>> {
    let found = sizes("bert", name, ["layers", "width", "heads", "vocabulary", "positions"])?;
    Some(found.and_then(|[layers, hidden, heads, vocabulary, positions]| {
        check_layers(layers)?;
        let (attention, feed_forward) = (AttentionKind::Fused, 4 * hidden);
        Ok(Bert { layers, hidden, heads, feed_forward, vocabulary, positions, attention })
    }))
}

impl Bert {
    /// Returns the graph for a micro-batch of `batch` sequences of `sequence` tokens, with a prediction of
    /// every token.
    ///
    /// # Errors
    /// If sizes contradict each other.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        check_sequence(sequence, self.positions)?;
        let mut composer = Composer::default();
        let targets = composer.input("targets", &[batch, sequence], Element::Index);
        let (table, mut x) =
            composer.block("embedding", |composer| self.embedding(composer, batch, sequence))?;
        for layer in 0..self.layers {
            x = composer.block(format!("block.{layer}"), |composer| self.layer(composer, x))?;
        }
        composer.block("head", |composer| {
            let x = composer.linear("transform", x, self.hidden)?;
            let x = composer.apply("gelu", Activation::Gelu, &[x])?;
            let x = composer.layer_norm("norm", x)?;
            let logits = composer.apply("logits", MatMul::new("bsn", "vn", "bsv"), &[x, table])?;
            let bias = composer.parameter("bias", &[self.vocabulary], Initial::Zeros);
            let logits = composer.add("add", logits, bias)?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }

    /// Returns the table of tokens, and the features of these tokens.
    fn embedding(
        &self,
        composer: &mut Composer,
        batch: usize,
        sequence: usize,
    ) -> Result<(TensorId, TensorId), Error> {
        let mut features = |name: &str, rows, shape: &[usize]| {
            let ids = composer.input(&format!("{name}s"), shape, Element::Index);
            let table = composer.weight(&format!("{name}.weight"), &[rows, self.hidden]);
            Ok((table, composer.apply(name, Embedding::plain(), &[table, ids])?))
        };
        let (table, token) = features("token", self.vocabulary, &[batch, sequence])?;
        let (_, segment) = features("segment", SEGMENTS, &[batch, sequence])?;
        let (_, place) = features("position", self.positions, &[sequence])?;
        let x = composer.add("add_segment", token, segment)?;
        let x = composer.add("add_position", x, place)?;
        Ok((table, composer.layer_norm("norm", x)?))
    }

    fn layer(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let Bert { heads, attention: kind, .. } = *self;
        let attention = SelfAttention { heads, causal: false, kind, dropout: 0.0 };
        let mixed = composer.scope("attention", |composer| attention.build(composer, x))?;
        let x = composer.add("attention.add", x, mixed)?;
        let x = composer.layer_norm("attention.norm", x)?;
        let fed = composer.scope("mlp", |composer| feed_forward(composer, x, self.feed_forward))?;
        let x = composer.add("mlp.add", x, fed)?;
        composer.layer_norm("mlp.norm", x)
    }
}
