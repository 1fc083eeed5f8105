//! Attention: `q[b,s,g·i·d] k[b,t,g·d] v[b,t,g·d] -> y[b,s,g·i·d]`.
//!
//! Vaswani et al., "Attention Is All You Need", section 3.2; Ainslie et al., "GQA", for groups: i heads
//! of queries share one head of keys and values, and the axis g runs over the heads of keys. Queries may
//! be cut along the sequence, but keys may not. Flops count all pairs of query and key, causal or not.
//! The backward pass counts twice as many flops; computing the scores again is not counted.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, quotient};
use crate::{Axes, Declaration, Error, Kind, Operand};

/// Attention: for every query, the mean of the values, weighted by the keys; inputs q, k, v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The features of a head.
    pub head_size: usize,
    /// Heads of queries that share one head of keys and values.
    pub queries_per_key: usize,
    /// Whether no query sees a later key.
    pub causal: bool,
}

/// The gradients of q, k and v; inputs q, k, v, dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionBackward(pub Attention);

impl Attention {
    fn operands(&self, shapes: [&[usize]; 3]) -> Result<(Axes, [Operand; 4], f64), Error> {
        let [b, s, features] = dims("q", shapes[0])?;
        let [_, t, key_features] = dims("k", shapes[1])?;
        if self.causal && s != t {
            let message =
                format!("q has {s} tokens and k {t}, expected equal numbers in causal attention");
            return Err(Error::new(Kind::Operands, message));
        }
        let width = self.head_size * self.queries_per_key;
        let groups = quotient("q", features, width)?;
        quotient("k", key_features, self.head_size)?;
        let mut axes = Axes::default();
        let (b, s, t) = (axes.even('b', b), axes.even('s', s), axes.never('t', t));
        let g = axes.even('g', groups);
        let flops = 4.0 * axes.points() * width as f64;
        let (query, key) = ([b, s, g.wide(width)], [b, t, g.wide(self.head_size)]);
        let operands = [("q", query), ("k", key), ("v", key), ("y", query)];
        Ok((axes, operands.map(|(name, dims)| Operand::new(name, dims)), flops))
    }
}

impl Rule for Attention {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let (axes, [q, k, v, y], flops) = self.operands(inputs(shapes)?)?;
        Ok(axes.declare([q, k, v], [y], flops))
    }
}

impl Rule for AttentionBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [q, k, v, _] = inputs(shapes)?;
        let (axes, [q, k, v, y], flops) = self.0.operands([q, k, v])?;
        let renamed = |operand: &Operand, name| Operand { name, ..operand.clone() };
        let outputs = [renamed(&q, "dq"), renamed(&k, "dk"), renamed(&v, "dv")];
        Ok(axes.declare([q, k, v, renamed(&y, "dy")], outputs, 2.0 * flops))
    }
}
