//! Self-attention and feed-forward parts of transformers.

use super::Composer;
use crate::{
    Activation, Attention, Error, Kind, MatMul, Reshape, Scale, Softmax, TensorId, Unpack,
};

/// Operators of which attention consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionKind {
    /// One operator, which keeps no scores.
    Fused,
    /// Products, a softmax and a dropout, which keep all scores.
    Plain,
}

/// The attention of a transformer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelfAttention {
    pub heads: usize,
    pub causal: bool,
    pub kind: AttentionKind,
    pub dropout: f64,
}

impl SelfAttention {
    /// Adds queries, keys and values of x as one product, attention, and a product with its result.
    pub fn build(&self, composer: &mut Composer, x: TensorId) -> Result<TensorId, Error> {
        let hidden = composer.features(x);
        let head_size = head_size(hidden, self.heads)?;
        let packed = composer.linear("qkv", x, 3 * hidden)?;
        let unpack = Unpack { dim: 2, pieces: self.heads, sections: vec![head_size; 3] };
        let qkv = composer.apply_all("heads", unpack, &[packed])?;
        let mixed = match self.kind {
            AttentionKind::Fused => {
                let attention = Attention { head_size, queries_per_key: 1, causal: self.causal };
                composer.apply("attention", attention, &qkv)?
            }
            AttentionKind::Plain => self.plain(composer, &qkv, head_size)?,
        };
        composer.linear("projection", mixed, hidden)
    }

    fn plain(
        &self,
        composer: &mut Composer,
        qkv: &[TensorId],
        head_size: usize,
    ) -> Result<TensorId, Error> {
        let flat = composer.shape(qkv[0]);
        let shape = vec![flat[0], flat[1], self.heads, head_size];
        let [q, k, v] = [("q", 0), ("k", 1), ("v", 2)]
            .map(|(name, at)| composer.apply(name, Reshape { shape: shape.clone() }, &[qkv[at]]));
        let products = composer.apply("scores", MatMul::new("bsgd", "btgd", "bgst"), &[q?, k?])?;
        let scaled =
            composer.apply("scale", Scale(1.0 / (head_size as f64).sqrt()), &[products])?;
        let weights = composer.apply("softmax", Softmax { causal: self.causal }, &[scaled])?;
        let weights = composer.dropout("weights", weights, self.dropout)?;
        let mixed =
            composer.apply("values", MatMul::new("bgst", "btgd", "bsgd"), &[weights, v?])?;
        composer.apply("mixed", Reshape { shape: flat }, &[mixed])
    }
}

/// Adds a layer to more features, a function of every element, and a layer back to the original features.
pub(super) fn feed_forward(
    composer: &mut Composer,
    x: TensorId,
    features: usize,
) -> Result<TensorId, Error> {
    let hidden = composer.features(x);
    let up = composer.linear("up", x, features)?;
    let active = composer.apply("gelu", Activation::Gelu, &[up])?;
    composer.linear("down", active, hidden)
}

/// Returns the number of features of a head.
pub(super) fn head_size(hidden: usize, heads: usize) -> Result<usize, Error> {
    match hidden.checked_rem(heads) {
        Some(0) => Ok(hidden / heads),
        _ => {
            let message = format!("{hidden} features cannot be {heads} heads of equal size");
            Err(Error::new(Kind::Sizes, message))
        }
    }
}
