//! Streaming partitioners, which process every vertex once, in the order of numbers.
//!
//! Stanton and Kliot, "Streaming Graph Partitioning for Large Distributed Graphs" (KDD'12); Tsourakakis,
//! Gkantsidis, Radunovic and Vojnovic, "FENNEL: Streaming Graph Partitioning for Massive Scale Graphs"
//! (WSDM'14), with its exponent 3/2. Sizes are weights, scaled so that they sum to the number of vertices.

use super::weights::{Options, Weights};
use crate::adjacency::Adjacency;

/// Value of a part for a vertex with `neighbors` neighbours in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// `neighbors * (1 - size / limit)`.
    Ldg,
    /// `neighbors - alpha * 3/2 * sqrt(size)`, alpha = sqrt(parts) * edges / vertices^(3/2).
    Fennel,
}

/// Partitions a graph whose edges have both directions. No part exceeds the bound of balance, unless no part
/// has room.
pub(super) fn stream(
    graph: &Adjacency,
    weights: &Weights,
    rule: Rule,
    options: &Options,
) -> Vec<u16> {
    let vertices = graph.vertices() as usize;
    let parts = options.parts as usize;
    let limit = options.balance_max * vertices as f64 / parts as f64;
    let edges = graph.edges() as f64 / 2.0;
    let alpha = (parts as f64).sqrt() * edges / (vertices as f64).powf(1.5);
    let (mut of, mut sizes, mut neighbors) =
        (vec![u16::MAX; vertices], vec![0.0; parts], vec![0_u32; parts]);
    for vertex in 0..vertices {
        neighbors.fill(0);
        for other in graph.neighbors(vertex as u32) {
            // Vertices that were not seen yet have no part.
            if let Some(count) = neighbors.get_mut(usize::from(of[*other as usize])) {
                *count += u32::from((*other as usize) < vertex);
            }
        }
        let weight = weights.of(vertex) / 2.0;
        let worth = |part: usize| {
            let (size, neighbors): (f64, f64) = (sizes[part], f64::from(neighbors[part]));
            match rule {
                _ if size + weight > limit => f64::NEG_INFINITY,
                Rule::Ldg => neighbors * (1.0 - size / limit),
                Rule::Fennel => neighbors - alpha * 1.5 * size.sqrt(),
            }
        };
        let better = |a: &usize, b: &usize| {
            worth(*a).total_cmp(&worth(*b)).then(sizes[*b].total_cmp(&sizes[*a]))
        };
        let best = (0..parts).max_by(better).unwrap_or(0);
        of[vertex] = best as u16;
        sizes[best] += weight;
    }
    of
}
