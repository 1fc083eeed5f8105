//! Attention, with its weights computed again for backward.
//!
//! Queries, keys and values stay where they are: products see them by head with strides.

use burn_tensor::Tensor;
use thinwire_model::{Attention, Region};

use super::rows;
use crate::spmd::value::{Value, edited};

/// Queries by head are `[b, g, i, s, d]`, keys and values `[b, g, 1, t, d]`.
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

    fn of_queries(&self, q: &Value) -> Tensor<5> {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let split = q.view([self.batch, self.queries, self.groups, i, d]);
        split.permute([0, 2, 3, 1, 4])
    }

    fn of_keys(&self, k: &Value) -> Tensor<5> {
        let d = self.attention.head_size;
        k.view([self.batch, self.keys, self.groups, 1, d]).permute([0, 2, 3, 1, 4])
    }

    fn back_to_queries(&self, x: Tensor<5>) -> Value {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let shape = [self.batch, self.queries, self.groups * i * d];
        Value::of(&shape, x.permute([0, 3, 1, 2, 4]))
    }

    /// Of every query that shares a key, together.
    fn back_to_keys(&self, x: Tensor<5>) -> Value {
        let Attention { head_size: d, queries_per_key: i, .. } = *self.attention;
        let x = if i == 1 { x } else { x.sum_dim(2) };
        let shape = [self.batch, self.keys, self.groups * d];
        Value::of(&shape, x.permute([0, 3, 1, 2, 4]))
    }

    fn factor(&self) -> f32 {
        (self.attention.head_size as f32).powf(-0.5)
    }

    /// How much every query takes of every key.
    fn weights(&self, q: Tensor<5>, k: Tensor<5>) -> Tensor<5> {
        let causal = self.attention.causal.then_some((self.first, self.queries));
        let scores = q.matmul(k.swap_dims(3, 4));
        edited(scores, |scores| rows::softmax(scores, self.keys, self.factor(), causal))
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
    let dv = weights.clone().swap_dims(3, 4).matmul(dy.clone());
    let weights: Vec<f32> = weights.into_data().try_into_vec().expect("values are f32");
    let dweights = dy.matmul(v.swap_dims(3, 4));
    let dscores = edited(dweights, |gradients| {
        rows::softmax_backward(&weights, gradients, heads.keys, heads.factor());
    });
    let dq = dscores.clone().matmul(k);
    let dk = dscores.swap_dims(3, 4).matmul(q);
    vec![heads.back_to_queries(dq), heads.back_to_keys(dk), heads.back_to_keys(dv)]
}
