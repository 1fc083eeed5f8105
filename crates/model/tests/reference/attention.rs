//! Attention, rotary positions, softmax and routes.

use thinwire_model::{
    Array, Attention, AttentionBackward, Region, Rotary, Route, RouteBackward, Softmax,
    SoftmaxBackward,
};

use super::Reference;

/// One query: its place, the first features of its head in q and in k, and the number of keys that
/// it attends to.
struct Query {
    batch: usize,
    at: usize,
    q_feature: usize,
    k_feature: usize,
    seen: usize,
}

/// Parts of attention.
trait Attend {
    fn each_query(&self, q: &Array, k: &Array, region: &Region<'_>, visit: impl FnMut(Query));
    fn factor(&self) -> f64;
    fn weights(&self, query: &Query, q: &Array, k: &Array) -> Vec<f64>;
    fn dot(&self, query: &Query, q: &Array, k: &Array, t: usize) -> f64;
}

impl Attend for Attention {
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

impl Reference for Attention {
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

impl Reference for AttentionBackward {
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

impl Reference for Rotary {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, first, half) = (inputs[0], region.part('s').start, self.head_size / 2);
        let y = Array::from_fn(x.shape(), |at| {
            let (feature, lower) = (at[2] % half, at[2] % self.head_size < half);
            let slowness = self.base.powf(feature as f64 / half as f64);
            let angle = (first + at[1]) as f64 / slowness;
            let (sine, cosine) = if self.back { -angle } else { angle }.sin_cos();
            let other = if lower { at[2] + half } else { at[2] - half };
            let across = x.at(&[at[0], at[1], other]) * sine;
            x.at(at) * cosine + if lower { -across } else { across }
        });
        vec![y]
    }
}

impl Reference for Route {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let mut gates = inputs[0].clone();
        let experts = gates.shape().last().copied().unwrap_or(1);
        for token in gates.values_mut().chunks_mut(experts) {
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| token[*b].total_cmp(&token[*a]));
            order[self.chosen..].iter().for_each(|expert| token[*expert] = f64::NEG_INFINITY);
            softmax(token);
        }
        vec![gates]
    }
}

impl Reference for RouteBackward {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let [gates, dgates] = [inputs[0], inputs[1]];
        let experts = gates.shape().last().copied().unwrap_or(1).max(1);
        let mut dlogits = gates.clone();
        let rows = dlogits.values_mut().chunks_mut(experts);
        rows.zip(dgates.values().chunks(experts)).for_each(|(y, dy)| softmax_backward(y, dy));
        vec![dlogits]
    }
}

impl Reference for Softmax {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let mut y = inputs[0].clone();
        let (keys, queries) = match *y.shape() {
            [.., queries, keys] => (keys, queries),
            _ => (y.values().len(), 1),
        };
        let first = region.output(0).iter().rev().nth(1).map_or(0, |part| part.start);
        for (row, values) in y.values_mut().chunks_mut(keys).enumerate() {
            let seen = if self.causal { keys.min(first + row % queries + 1) } else { keys };
            values[seen..].fill(0.0);
            softmax(&mut values[..seen]);
        }
        vec![y]
    }
}

impl Reference for SoftmaxBackward {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let [y, dy] = [inputs[0], inputs[1]];
        let length = y.shape().last().copied().unwrap_or(1).max(1);
        let mut dx = y.clone();
        for (y, dy) in dx.values_mut().chunks_mut(length).zip(dy.values().chunks(length)) {
            softmax_backward(y, dy);
        }
        vec![dx]
    }
}

/// Replaces values by their exponentials, divided by the sum of them.
fn softmax(values: &mut [f64]) {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
}

/// Replaces a softmax by the gradient of what it was of.
fn softmax_backward(y: &mut [f64], dy: &[f64]) {
    let along: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
    y.iter_mut().zip(dy).for_each(|(y, dy)| *y *= dy - along);
}
