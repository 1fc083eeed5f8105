//! Mixtures of experts: gates, and moving tokens to their experts' places and back.
//!
//! Places of tokens are computed once from the gates; rows of features are then copied or added as a whole.

use thinwire_model::{Combine, Dispatch, Region};

use crate::spmd::value::Value;

/// Returns the softmax over each token's largest logits.
pub fn route(chosen: usize, logits: &Value) -> Value {
    let [_, experts] = logits.rows();
    let mut order: Vec<usize> = Vec::with_capacity(experts);
    logits.clone().edited(|values| {
        for token in values.chunks_mut(experts.max(1)) {
            order.clear();
            order.extend(0..token.len());
            order.sort_by(|a, b| token[*b].total_cmp(&token[*a]));
            let greatest = order.first().map_or(0.0, |expert| token[*expert]);
            order[chosen..].iter().for_each(|expert| token[*expert] = 0.0);
            let taken = &order[..chosen];
            taken.iter().for_each(|expert| token[*expert] = (token[*expert] - greatest).exp());
            let sum: f32 = taken.iter().map(|expert| token[*expert]).sum();
            taken.iter().for_each(|expert| token[*expert] /= sum);
        }
    })
}

/// A token that has a place.
struct Taken {
    /// The row of x.
    token: usize,
    /// The element of the gates.
    gate: usize,
    /// The row of y.
    place: usize,
}

/// Returns every token that has a place; gates are `[b, s, e]`, places `[b, e, c]`.
fn taken(gates: &Value, values: &[f32], capacity: usize) -> Vec<Taken> {
    let [batch, tokens, experts] = *gates.shape() else { return Vec::new() };
    let mut all = Vec::new();
    for (b, e) in (0..batch).flat_map(|b| (0..experts).map(move |e| (b, e))) {
        let gate = |s: usize| (b * tokens + s) * experts + e;
        let gated = (0..tokens).filter(|s| values[gate(*s)] != 0.0);
        all.extend(gated.take(capacity).enumerate().map(|(c, s)| Taken {
            token: b * tokens + s,
            gate: gate(s),
            place: (b * experts + e) * capacity + c,
        }));
    }
    all
}

/// Returns tokens at their places; inputs are x and gates.
pub fn dispatch(dispatch: &Dispatch, inputs: &[&Value], region: &Region<'_>) -> Value {
    let (x, gates) = (inputs[0], inputs[1].floats());
    let moves = taken(inputs[1], gates, dispatch.capacity).into_iter().map(|taken| {
        let factor = if dispatch.weighted { gates[taken.gate] } else { 1.0 };
        (taken.token, taken.place, factor)
    });
    add_rows(x, moves, &region.output_shape(0))
}

/// Returns the sum over every token's places; inputs are y and gates.
pub fn combine(combine: &Combine, inputs: &[&Value], region: &Region<'_>) -> Value {
    let (y, gates) = (inputs[0], inputs[1].floats());
    let moves = taken(inputs[1], gates, y.shape()[2]).into_iter().map(|taken| {
        let factor = if combine.weighted { gates[taken.gate] } else { 1.0 };
        (taken.place, taken.token, factor)
    });
    add_rows(y, moves, &region.output_shape(0))
}

/// Returns zeros of a shape to which rows of features were added, each times a factor: `(from, to, factor)`.
fn add_rows(
    rows: &Value,
    moves: impl Iterator<Item = (usize, usize, f32)>,
    shape: &[usize],
) -> Value {
    let (values, [_, n]) = (rows.floats(), rows.rows());
    let mut sums = vec![0.0; shape.iter().product()];
    for (from, to, factor) in moves {
        let row = &values[from * n..][..n];
        sums[to * n..][..n].iter_mut().zip(row).for_each(|(sum, x)| *sum += factor * x);
    }
    Value::new(shape, sums)
}

/// Returns the gradient of the gates; inputs are y, gates and dx.
pub fn combine_gates(inputs: &[&Value]) -> Value {
    let [y, gates, dx] = [0, 1, 2].map(|at| inputs[at].floats());
    let (capacity, [_, n]) = (inputs[0].shape()[2], inputs[0].rows());
    let mut dgates = vec![0.0; gates.len()];
    for Taken { token, gate, place } in taken(inputs[1], gates, capacity) {
        let pairs = y[place * n..][..n].iter().zip(&dx[token * n..][..n]);
        dgates[gate] = pairs.map(|(y, dx)| y * dx).sum();
    }
    Value::new(inputs[1].shape(), dgates)
}
