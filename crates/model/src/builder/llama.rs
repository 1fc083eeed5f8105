//! Llama: a decoder with RMS norms, rotary positions, grouped heads and gated feed-forward parts.
//!
//! Touvron et al., "Llama 2"; Grattafiori et al., "The Llama 3 Herd of Models", table 3.

use super::Composer;
use super::sizes::{check_layers, check_sequence, sizes};
use super::transformer::head_size;
use crate::{
    Activation, Arithmetic, Attention, Element, Embedding, Error, Graph, Kind, MatMul, Rotary,
    TensorId, Unpack,
};

/// The sizes of a Llama.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama {
    /// Blocks.
    pub layers: usize,
    /// Features of a token.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Features within the feed-forward part.
    pub feed_forward: usize,
    /// Size of the vocabulary, in tokens.
    pub vocabulary: usize,
    /// Largest number of tokens of a sequence.
    pub positions: usize,
    /// The base of rotary positions.
    pub base: f64,
}

/// Returns the model with this name.
pub fn named(name: &str) -> Option<Llama> {
    let (layers, hidden, heads, key_heads, feed_forward) = match name {
        "tinyllama-1.1b" => (22, 2048, 32, 4, 5632),
        "llama2-7b" => (32, 4096, 32, 32, 11008),
        "llama2-13b" => (40, 5120, 40, 40, 13824),
        "llama2-70b" => (80, 8192, 64, 8, 28672),
        "llama3-8b" => (32, 4096, 32, 8, 14336),
        _ => return None,
    };
    let (vocabulary, positions, base) = match name {
        "llama3-8b" => (128_256, 8192, 500_000.0),
        "tinyllama-1.1b" => (32000, 2048, 10_000.0),
        _ => (32000, 4096, 10_000.0),
    };
    Some(Llama { layers, hidden, heads, key_heads, feed_forward, vocabulary, positions, base })
}

/// Pattern of the name of a Llama of any size.
pub(super) const SPELLED: &str =
    "llama:layers=N,width=N,heads=N,key_heads=N,feed_forward=N,vocabulary=N,positions=N";

/// Returns the model of a name that contains its sizes, as [`SPELLED`]; `None` if the name has another form.
pub(super) fn spelled(name: &str) -> Option<Result<Llama, Error>> {
    let names =
        ["layers", "width", "heads", "key_heads", "feed_forward", "vocabulary", "positions"];
    Some(sizes("llama", name, names)?.and_then(|sizes| of_sizes(&sizes)))
}

/// Returns a Llama with sizes in the order of [`SPELLED`].
pub(super) fn of_sizes(sizes: &[usize; 7]) -> Result<Llama, Error> {
    let [layers, hidden, heads, key_heads, feed_forward, vocabulary, positions] = *sizes;
    check_layers(layers)?;
    let base = 10_000.0;
    Ok(Llama { layers, hidden, heads, key_heads, feed_forward, vocabulary, positions, base })
}

impl Llama {
    /// Returns the graph for a micro-batch of `batch` sequences of `sequence` tokens.
    ///
    /// # Errors
    /// If sizes contradict each other.
    pub fn graph(&self, batch: usize, sequence: usize) -> Result<Graph, Error> {
        self.graph_with(batch, sequence, |composer, x| {
            let packed = composer.linear_without_bias("gate_up", x, 2 * self.feed_forward)?;
            let active = gated(composer, packed)?;
            composer.linear_without_bias("down", active, self.hidden)
        })
    }

    /// Returns the graph with other feed-forward parts.
    pub(super) fn graph_with(
        &self,
        batch: usize,
        sequence: usize,
        feed_forward: impl Fn(&mut Composer, TensorId) -> Result<TensorId, Error>,
    ) -> Result<Graph, Error> {
        check_sequence(sequence, self.positions)?;
        let mut composer = Composer::default();
        let tokens = composer.input("tokens", &[batch, sequence], Element::Index);
        let targets = composer.input("targets", &[batch, sequence], Element::Index);
        let mut x = composer.block("embedding", |composer| {
            let table = composer.weight("token.weight", &[self.vocabulary, self.hidden]);
            composer.apply("token", Embedding::plain(), &[table, tokens])
        })?;
        for layer in 0..self.layers {
            x = composer.block(format!("block.{layer}"), |composer| {
                let mixed = composer.scope("attention", |composer| self.attention(composer, x))?;
                let x = composer.add("attention.add", x, mixed)?;
                let fed = composer.scope("mlp", |composer| {
                    let normal = composer.rms_norm("norm", x)?;
                    feed_forward(composer, normal)
                })?;
                composer.add("mlp.add", x, fed)
            })?;
        }
        composer.block("head", |composer| {
            let x = composer.rms_norm("norm", x)?;
            let table = composer.weight("logits.weight", &[self.vocabulary, self.hidden]);
            let logits = composer.apply("logits", MatMul::new("bsn", "vn", "bsv"), &[x, table])?;
            composer.cross_entropy(logits, targets)
        })?;
        Ok(composer.finish())
    }

    fn attention(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let head_size = head_size(self.hidden, self.heads)?;
        let queries_per_key = match self.heads.checked_rem(self.key_heads) {
            Some(0) => self.heads / self.key_heads,
            _ => {
                let message = format!(
                    "{} heads of queries cannot share {} of keys equally",
                    self.heads, self.key_heads
                );
                return Err(Error::new(Kind::Sizes, message));
            }
        };
        let normal = composer.rms_norm("norm", x)?;
        let features = (self.heads + 2 * self.key_heads) * head_size;
        let packed = composer.linear_without_bias("qkv", normal, features)?;
        let sections = vec![queries_per_key * head_size, head_size, head_size];
        let unpack = Unpack { dim: 2, pieces: self.key_heads, sections };
        let qkv = composer.apply_all("heads", unpack, &[packed])?;
        let rotary = Rotary { head_size, base: self.base, back: false };
        let q = composer.apply("q", rotary, &[qkv[0]])?;
        let k = composer.apply("k", rotary, &[qkv[1]])?;
        let attention = Attention { head_size, queries_per_key, causal: true };
        let mixed = composer.apply("attention", attention, &[q, k, qkv[2]])?;
        composer.linear_without_bias("projection", mixed, self.hidden)
    }
}

/// Largest number of pieces of a gated layer, and so of parts into which it can be cut; each piece holds its
/// gates next to the values that they multiply.
const PIECES: usize = 256;

/// Returns the first half of every piece, through SiLU, times the second half.
pub(super) fn gated(composer: &mut Composer, packed: TensorId) -> Result<TensorId, Error> {
    let half = composer.features(packed) / 2;
    let pieces =
        (1..=PIECES.min(half)).rev().find(|pieces| half.is_multiple_of(*pieces)).unwrap_or(1);
    let dim = composer.shape(packed).len() - 1;
    let unpack = Unpack { dim, pieces, sections: vec![half / pieces; 2] };
    let halves = composer.apply_all("halves", unpack, &[packed])?;
    let gate = composer.apply("silu", Activation::Silu, &halves[..1])?;
    composer.apply("gated", Arithmetic::Multiply, &[gate, halves[1]])
}
