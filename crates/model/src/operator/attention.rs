//! Attention: `q[b,s,g·i·d] k[b,t,g·d] v[b,t,g·d] -> y[b,s,g·i·d]`.
//!
//! Vaswani et al., "Attention Is All You Need", section 3.2; Ainslie et al., "GQA", for groups: i
//! heads of queries share one head of keys and values, and the axis g runs over those. Queries may
//! be cut along the sequence, keys may not. Flops are those of all pairs of query and key, causal or
//! not, and those of backward are twice as many: scores are counted once.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, quotient};
use super::softmax::{softmax, softmax_backward};
use crate::error::refuse_if;
use crate::{Array, Axes, Declaration, Error, Kind, Operand, Region};

/// Every query's mean of the values; inputs q, k, v.
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

/// One query: its place, the first features of its head in q and in k, and the number of keys that
/// it attends to.
struct Query {
    batch: usize,
    at: usize,
    q_feature: usize,
    k_feature: usize,
    seen: usize,
}

impl Attention {
    fn operands(&self, shapes: [&[usize]; 3]) -> Result<(Axes, [Operand; 4], f64), Error> {
        let [b, s, features] = dims("q", shapes[0])?;
        let [_, t, key_features] = dims("k", shapes[1])?;
        refuse_if(self.causal && s != t, Kind::Operands, || {
            format!("q has {s} tokens and k {t}, expected as many where it is causal")
        })?;
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

    /// Calls a function with every query.
    fn each_query(&self, q: &Array, k: &Array, region: &Region<'_>, mut visit: impl FnMut(Query)) {
        let (first, keys) = (region.part('s').start, k.shape()[1]);
        let heads = q.shape()[2] / self.head_size;
        Array::each_index(&[q.shape()[0], q.shape()[1], heads], |index| {
            let (batch, at, head) = (index[0], index[1], index[2]);
            visit(Query {
                batch,
                at,
                q_feature: head * self.head_size,
                k_feature: head / self.queries_per_key * self.head_size,
                seen: if self.causal { keys.min(first + at + 1) } else { keys },
            });
        });
    }

    fn factor(&self) -> f64 {
        1.0 / (self.head_size as f64).sqrt()
    }

    /// Returns the attention weights of a query, one for each key that it attends to.
    fn weights(&self, query: &Query, q: &Array, k: &Array) -> Vec<f64> {
        let score = |t: usize| self.dot(query, q, k, t) * self.factor();
        let mut weights: Vec<f64> = (0..query.seen).map(score).collect();
        softmax(&mut weights);
        weights
    }

    /// A head's product of a query-like and a key-like operand.
    fn dot(&self, query: &Query, q: &Array, k: &Array, t: usize) -> f64 {
        let feature = |d: usize| {
            q.at(&[query.batch, query.at, query.q_feature + d])
                * k.at(&[query.batch, t, query.k_feature + d])
        };
        (0..self.head_size).map(feature).sum()
    }
}

impl Rule for Attention {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let (axes, [q, k, v, y], flops) = self.operands(inputs(shapes)?)?;
        Ok(axes.declare([q, k, v], [y], flops))
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
        let mut y = Array::full(q.shape(), 0.0);
        self.each_query(q, k, region, |query| {
            for (t, weight) in self.weights(&query, q, k).into_iter().enumerate() {
                for d in 0..self.head_size {
                    let value = v.at(&[query.batch, t, query.k_feature + d]);
                    y.add(&[query.batch, query.at, query.q_feature + d], weight * value);
                }
            }
        });
        vec![y]
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

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (q, k, v, dy) = (inputs[0], inputs[1], inputs[2], inputs[3]);
        let zero = |like: &Array| Array::full(like.shape(), 0.0);
        let (mut dq, mut dk, mut dv) = (zero(q), zero(k), zero(v));
        self.0.each_query(q, k, region, |query| {
            let weights = self.0.weights(&query, q, k);
            let along: Vec<f64> = (0..query.seen).map(|t| self.0.dot(&query, dy, v, t)).collect();
            let mut scores = weights.clone();
            softmax_backward(&mut scores, &along);
            for (t, (weight, score)) in weights.into_iter().zip(scores).enumerate() {
                for d in 0..self.0.head_size {
                    let of_q = [query.batch, query.at, query.q_feature + d];
                    let of_k = [query.batch, t, query.k_feature + d];
                    dv.add(&of_k, weight * dy.at(&of_q));
                    dq.add(&of_q, score * self.0.factor() * k.at(&of_k));
                    dk.add(&of_k, score * self.0.factor() * q.at(&of_q));
                }
            }
        });
        vec![dq, dk, dv]
    }
}
