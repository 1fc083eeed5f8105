//! GAT: a mean over in-neighbours and the vertex itself, weighted by attention.
//!
//! Veličković et al., "Graph attention networks" (2018), section 2.1. Each of the heads has columns of its own
//! in `z = x W`: `y_v = sum of a_uv z_u + b`, where `a_uv` is the softmax over `u` of
//! `leaky(s z_u + t z_v)`.

use super::Wanted;
use super::hop::Hop;
use super::matrix::{Matrix, add, dot, times, weight};

/// Slope of LeakyReLU for negative numbers.
const SLOPE: f32 = 0.2;

/// Values of a forward pass that the backward pass uses.
#[derive(Debug)]
pub struct Attended {
    z: Matrix,
    /// Scores of messages before LeakyReLU: first those of each destination to itself, then those of its
    /// edges. A row has one value per head.
    scores: Matrix,
    /// Attention weights of the same messages.
    shares: Matrix,
}

/// Computes a layer from its weights W, s, t and b. There is one head per row of `s`.
pub fn forward(
    weights: &[Vec<f32>],
    heads: usize,
    hop: &Hop<'_>,
    x: &Matrix,
) -> (Matrix, Attended) {
    let z = times(&x.view(), &weight(&weights[0], x.columns()));
    let (sources, own) = (scores(&z, &weights[1], heads), scores(&z, &weights[2], heads));
    let mut y = Matrix::zeros(hop.destinations(), z.columns());
    let messages = hop.destinations() + hop.first_edge(hop.destinations());
    let mut raw = Matrix::zeros(messages, heads);
    let mut shares = Matrix::zeros(messages, heads);
    for destination in 0..hop.destinations() {
        let range = messages_of(hop, destination);
        for (message, source) in range.clone().zip(senders(hop, destination)) {
            raw.row_mut(message).copy_from_slice(sources.row(source));
            add(raw.row_mut(message), own.row(destination), 1.0);
        }
        for head in 0..heads {
            softmax(&raw, &mut shares, range.clone(), head);
        }
        for (message, source) in range.zip(senders(hop, destination)) {
            mix(y.row_mut(destination), shares.row(message), z.row(source));
        }
    }
    y.add_row(&weights[3]);
    (y, Attended { z, scores: raw, shares })
}

/// Returns the gradients of the weights and, on request, of `x`, given the gradient of the outputs.
pub fn backward(
    weights: &[Vec<f32>],
    hop: &Hop<'_>,
    x: &Matrix,
    kept: &Attended,
    dy: &Matrix,
    wanted: Wanted,
) -> (Vec<Vec<f32>>, Option<Matrix>) {
    let (z, heads) = (&kept.z, kept.shares.columns());
    let width = z.columns() / heads;
    let mut dz = Matrix::zeros(z.rows(), z.columns());
    let mut of_sources = Matrix::zeros(z.rows(), heads);
    let mut of_own = Matrix::zeros(z.rows(), heads);
    for destination in 0..hop.destinations() {
        let row = dy.row(destination);
        let first = messages_of(hop, destination).start;
        for (message, source) in (first..).zip(senders(hop, destination)) {
            mix(dz.row_mut(source), kept.shares.row(message), row);
        }
        for head in 0..heads {
            let part = head * width..(head + 1) * width;
            let toward = |source: usize| dot(&row[part.clone()], &z.row(source)[part.clone()]);
            let share = |message: usize| kept.shares.row(message)[head];
            let sent = || (first..).zip(senders(hop, destination));
            let mean: f32 = sent().map(|(message, source)| share(message) * toward(source)).sum();
            for (message, source) in sent() {
                let slope = if kept.scores.row(message)[head] > 0.0 { 1.0 } else { SLOPE };
                let ds = share(message) * (toward(source) - mean) * slope;
                of_sources.row_mut(source)[head] += ds;
                of_own.row_mut(destination)[head] += ds;
            }
        }
    }
    let mut gradients = vec![Vec::new()];
    for (ds, vector) in [(&of_sources, &weights[1]), (&of_own, &weights[2])] {
        gradients.push(spread(ds, vector, z, &mut dz));
    }
    gradients[0] = times(&x.view().transposed(), &dz.view()).into_values();
    gradients.push(dy.column_sums());
    let back = || times(&dz.view(), &weight(&weights[0], x.columns()).transposed());
    (gradients, (wanted == Wanted::All).then(back))
}

/// Returns the places of a destination's messages: its own, then those of its edges.
fn messages_of(hop: &Hop<'_>, destination: usize) -> std::ops::Range<usize> {
    let first = hop.first_edge(destination) + destination;
    first..first + 1 + hop.sources_of(destination).len()
}

/// Returns the sources of these messages.
fn senders(hop: &Hop<'_>, destination: usize) -> impl Iterator<Item = usize> {
    let sources = hop.sources_of(destination).iter().map(|source| *source as usize);
    std::iter::once(destination).chain(sources)
}

/// Returns, for every row, its product with a vector, per head.
fn scores(z: &Matrix, vector: &[f32], heads: usize) -> Matrix {
    let width = z.columns() / heads;
    let products = (0..z.rows()).flat_map(|row| {
        let parts = z.row(row).chunks_exact(width).zip(vector.chunks_exact(width));
        parts.map(|(part, vector)| dot(part, vector))
    });
    Matrix::new(heads, products.collect())
}

/// Adds the gradient of such products to that of the rows, and returns that of the vector.
fn spread(ds: &Matrix, vector: &[f32], z: &Matrix, dz: &mut Matrix) -> Vec<f32> {
    let width = z.columns() / ds.columns();
    let mut gradient = vec![0.0; vector.len()];
    for row in 0..z.rows() {
        for (head, ds) in ds.row(row).iter().enumerate() {
            let part = head * width..(head + 1) * width;
            add(&mut gradient[part.clone()], &z.row(row)[part.clone()], *ds);
            add(&mut dz.row_mut(row)[part.clone()], &vector[part], *ds);
        }
    }
    gradient
}

/// Adds `from` to a row; each head's part of it is multiplied by the head's share.
fn mix(to: &mut [f32], shares: &[f32], from: &[f32]) {
    let width = to.len() / shares.len();
    let parts = to.chunks_exact_mut(width).zip(from.chunks_exact(width));
    parts.zip(shares).for_each(|((to, from), share)| add(to, from, *share));
}

/// Writes the softmax of one head's scores after LeakyReLU.
fn softmax(raw: &Matrix, shares: &mut Matrix, messages: std::ops::Range<usize>, head: usize) {
    let leaky = |message: usize| {
        let score = raw.row(message)[head];
        if score > 0.0 { score } else { SLOPE * score }
    };
    let largest = messages.clone().map(leaky).fold(f32::MIN, f32::max);
    let mut total = 0.0;
    for message in messages.clone() {
        let share = (leaky(message) - largest).exp();
        shares.row_mut(message)[head] = share;
        total += share;
    }
    messages.for_each(|message| shares.row_mut(message)[head] /= total);
}
