//! Attention, with its weights computed again for backward.

use burn_tensor::Tensor;
use thinwire_model::{Attention, Region};

use super::softmax::{mask, of_rows, slope};
use crate::spmd::value::Value;

/// Queries, keys and values by head: `[b·g, i·s, d]` and `[b·g, t, d]`.
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

    /// `[b, s, g·i·d]` by head of keys.
    fn of_queries(&self, q: &Value) -> Tensor<3> {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let split = q.view([self.batch, self.queries, self.groups, i, d]);
        split.permute([0, 2, 3, 1, 4]).reshape([self.batch * self.groups, i * self.queries, d])
    }

    /// `[b, t, g·d]` by head.
    fn of_keys(&self, k: &Value) -> Tensor<3> {
        let d = self.attention.head_size;
        let split = k.view([self.batch, self.keys, self.groups, d]);
        split.swap_dims(1, 2).reshape([self.batch * self.groups, self.keys, d])
    }

    fn back_to_queries(&self, x: Tensor<3>) -> Value {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let split = x.reshape([self.batch, self.groups, i, self.queries, d]);
        let shape = [self.batch, self.queries, self.groups * i * d];
        Value::of(&shape, split.permute([0, 3, 1, 2, 4]))
    }

    fn back_to_keys(&self, x: Tensor<3>) -> Value {
        let d = self.attention.head_size;
        let split = x.reshape([self.batch, self.groups, self.keys, d]).swap_dims(1, 2);
        Value::of(&[self.batch, self.keys, self.groups * d], split)
    }

    fn factor(&self) -> f32 {
        (self.attention.head_size as f32).powf(-0.5)
    }

    /// How much every query takes of every key.
    fn weights(&self, q: Tensor<3>, k: Tensor<3>) -> Tensor<3> {
        let mut scores = q.matmul(k.swap_dims(1, 2)).mul_scalar(self.factor());
        let shape = scores.dims();
        if self.attention.causal {
            let heads = shape[0] * self.attention.queries_per_key;
            let mask = mask((self.first, self.queries), self.keys, &scores.device());
            let by_head = scores.reshape([heads, self.queries, self.keys]);
            scores = (by_head + mask.reshape([1, self.queries, self.keys])).reshape(shape);
        }
        of_rows(scores.reshape([shape[0] * shape[1], shape[2]])).reshape(shape)
    }
}

/// Every query's mean of the values.
pub fn forward(attention: &Attention, inputs: &[&Value], region: &Region<'_>) -> Value {
    let heads = Heads::new(attention, inputs, region);
    let [k, v] = [1, 2].map(|at| heads.of_keys(inputs[at]));
    let weights = heads.weights(heads.of_queries(inputs[0]), k);
    heads.back_to_queries(weights.matmul(v))
}

/// The gradients of q, k and v.
pub fn backward(attention: &Attention, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let heads = Heads::new(attention, inputs, region);
    let [q, dy] = [0, 3].map(|at| heads.of_queries(inputs[at]));
    let [k, v] = [1, 2].map(|at| heads.of_keys(inputs[at]));
    let weights = heads.weights(q.clone(), k.clone());
    let dv = weights.clone().swap_dims(1, 2).matmul(dy.clone());
    let dweights = dy.matmul(v.swap_dims(1, 2));
    let shape = weights.dims();
    let flat = [shape[0] * shape[1], shape[2]];
    let dscores = slope(weights.reshape(flat), dweights.reshape(flat)).reshape(shape);
    let dscores = dscores.mul_scalar(heads.factor());
    let dq = dscores.clone().matmul(k);
    let dk = dscores.swap_dims(1, 2).matmul(q);
    vec![heads.back_to_queries(dq), heads.back_to_keys(dk), heads.back_to_keys(dv)]
}
