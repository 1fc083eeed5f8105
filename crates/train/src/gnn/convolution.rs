//! GraphSAGE and GCN: a sum over in-neighbours, times a weight.
//!
//! GraphSAGE (Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", 2017, with
//! the mean): `y_v = x_v S + mean(x_u) W + b`. GCN (Kipf and Welling, "Semi-supervised classification with
//! graph convolutional networks", 2017): `y_v = (sum of normalised x_u, x_v among them) W + b`.

use super::Wanted;
use super::hop::Hop;
use super::matrix::{Matrix, times, weight};

/// Computes a layer from its weights W, b, and possibly S. Also returns the sums.
pub fn forward(weights: &[Vec<f32>], hop: &Hop<'_>, x: &Matrix) -> (Matrix, Matrix) {
    let sums = hop.sum(x);
    let mut y = times(&sums.view(), &weight(&weights[0], x.columns()));
    if let Some(own) = weights.get(2) {
        y.add_head(&times(&x.head(hop.destinations()), &weight(own, x.columns())));
    }
    y.add_row(&weights[1]);
    (y, sums)
}

/// Returns the gradients of the weights and, on request, of `x`, given the gradient of the outputs.
pub fn backward(
    weights: &[Vec<f32>],
    hop: &Hop<'_>,
    x: &Matrix,
    sums: &Matrix,
    dy: &Matrix,
    wanted: Wanted,
) -> (Vec<Vec<f32>>, Option<Matrix>) {
    let of = |inputs: &Matrix| {
        let inputs = inputs.head(hop.destinations()).transposed();
        times(&inputs, &dy.view()).into_values()
    };
    let mut gradients = vec![of(sums), dy.column_sums()];
    let own = weights.get(2);
    gradients.extend(own.map(|_| of(x)));
    let back = |values: &[f32]| times(&dy.view(), &weight(values, x.columns()).transposed());
    let dx = (wanted == Wanted::All).then(|| {
        let mut dx = hop.turned(&back(&weights[0]));
        own.into_iter().for_each(|own| dx.add_head(&back(own)));
        dx
    });
    (gradients, dx)
}
