//! Attention. The backward pass computes the attention weights again, so they need not be kept.
//!
//! Queries, keys and values are not copied: products read them by head, with strides.

use thinwire_model::{Attention, Region};

use super::multiply::product;
use super::rows;
use crate::spmd::strided::Strided;
use crate::spmd::value::Value;

/// Queries by head, `[b, g, i, s, d]`, and keys and values, `[b, g, 1, t, d]`.
struct Heads<'a> {
    attention: &'a Attention,
    batch: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    first: usize,
}

impl<'a> Heads<'a> {
    fn new(attention: &'a Attention, inputs: &[&Value], region: &Region<'_>) -> Heads<'a> {
        let (q, k) = (inputs[0].shape(), inputs[1].shape());
        let groups = k[2] / attention.head_size;
        let first = region.part('s').start;
        Heads { attention, batch: q[0], groups, queries: q[1], keys: k[1], first }
    }

    fn of_queries<'v>(&self, q: &'v Value) -> Strided<'v> {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        q.view(&[self.batch, self.queries, self.groups, i, d]).permuted(&[0, 2, 3, 1, 4])
    }

    fn of_keys<'v>(&self, k: &'v Value) -> Strided<'v> {
        let d = self.attention.head_size;
        k.view(&[self.batch, self.keys, self.groups, 1, d]).permuted(&[0, 2, 3, 1, 4])
    }

    /// Returns a view of scores or weights of every query for every key.
    fn of_pairs<'v>(&self, x: &'v [f32]) -> Strided<'v> {
        let i = self.attention.queries_per_key;
        Strided::new(x, &[self.batch, self.groups, i, self.queries, self.keys])
    }

    fn back_to_queries(&self, x: Vec<f32>) -> Value {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let by_head = Strided::new(&x, &[self.batch, self.groups, i, self.queries, d]);
        let shape = [self.batch, self.queries, self.groups * i * d];
        Value::new(&shape, by_head.permuted(&[0, 3, 1, 2, 4]).contiguous())
    }

    /// Returns sums over all queries that share a key.
    fn back_to_keys(&self, x: Vec<f32>) -> Value {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let x = if i == 1 { x } else { rows::sum_middle(&x, i, self.keys * d) };
        let by_head = Strided::new(&x, &[self.batch, self.groups, self.keys, d]);
        let shape = [self.batch, self.keys, self.groups * d];
        Value::new(&shape, by_head.permuted(&[0, 2, 1, 3]).contiguous())
    }

    fn factor(&self) -> f32 {
        (self.attention.head_size as f32).powf(-0.5)
    }

    /// Returns the softmax weights of every query for every key.
    fn weights(&self, q: &Strided<'_>, k: &Strided<'_>) -> Vec<f32> {
        let causal = self.attention.causal.then_some((self.first, self.queries));
        let mut scores = product(q, &k.clone().transposed());
        rows::softmax(&mut scores, self.keys, self.factor(), causal);
        scores
    }
}

/// Returns every query's mean of the values.
pub fn forward(attention: &Attention, inputs: &[&Value], region: &Region<'_>) -> Value {
    let heads = Heads::new(attention, inputs, region);
    let [k, v] = [1, 2].map(|at| heads.of_keys(inputs[at]));
    let weights = heads.weights(&heads.of_queries(inputs[0]), &k);
    heads.back_to_queries(product(&heads.of_pairs(&weights), &v))
}

/// Returns the gradients of q, k and v.
pub fn backward(attention: &Attention, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let heads = Heads::new(attention, inputs, region);
    let [q, dy] = [0, 3].map(|at| heads.of_queries(inputs[at]));
    let [k, v] = [1, 2].map(|at| heads.of_keys(inputs[at]));
    let weights = heads.weights(&q, &k);
    let dv = product(&heads.of_pairs(&weights).transposed(), &dy);
    let mut dscores = product(&dy, &v.transposed());
    rows::softmax_backward(&weights, &mut dscores, heads.keys, heads.factor());
    let dscores = heads.of_pairs(&dscores);
    let dq = product(&dscores, &k);
    let dk = product(&dscores.transposed(), &q);
    vec![heads.back_to_queries(dq), heads.back_to_keys(dk), heads.back_to_keys(dv)]
}
