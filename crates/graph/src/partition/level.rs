//! Levelling: moves training vertices out of parts that have too many.
//!
//! Partitioners that balance the sum of two weights, or decide vertex by vertex, leave parts with more
//! training vertices than the bound. From these parts, vertices move to a part that has room. The
//! vertices that lose the fewest neighbours in their part move first. Law: the number of training
//! vertices of a part is at most the bound of balance times the mean, rounded down, or, if that is
//! larger, the mean rounded up.

use super::weights::{Options, Weights};
use crate::adjacency::Adjacency;

/// Training vertex that may leave its part.
struct Candidate {
    vertex: u32,
    /// Number of the vertex's neighbours in its present part, minus the number in its new part.
    loss: i64,
    target: usize,
}

/// Moves training vertices of a graph whose edges have both directions.
pub(super) fn level(graph: &Adjacency, weights: &Weights, options: &Options, of: &mut [u16]) {
    let parts = options.parts as usize;
    let mut counts = vec![0; parts];
    let training = || (0..of.len()).filter(|vertex| weights.is_training[*vertex]);
    training().for_each(|vertex| counts[usize::from(of[vertex])] += 1);
    let mean = counts.iter().sum::<u64>() as f64 / parts as f64;
    let limit = ((mean * options.balance_max) as u64).max(mean.ceil() as u64);
    for part in (0..parts).filter(|part| counts[*part] > limit).collect::<Vec<_>>() {
        let members = (0..of.len() as u32).filter(|vertex| {
            weights.is_training[*vertex as usize] && usize::from(of[*vertex as usize]) == part
        });
        let mut candidates: Vec<Candidate> =
            members.map(|vertex| candidate(graph, of, vertex, &counts, limit)).collect();
        candidates.sort_by_key(|candidate| (candidate.loss, candidate.vertex));
        for Candidate { vertex, target, .. } in candidates {
            if counts[part] <= limit {
                break;
            }
            let target = if counts[target] < limit { target } else { emptiest(&counts) };
            of[vertex as usize] = target as u16;
            counts[part] -= 1;
            counts[target] += 1;
        }
    }
}

/// Finds the part with room that has most neighbours of a vertex; if no neighbour is in such a part, the part
/// with the fewest training vertices.
fn candidate(graph: &Adjacency, of: &[u16], vertex: u32, counts: &[u64], limit: u64) -> Candidate {
    let mut neighbors = vec![0_i64; counts.len()];
    for other in graph.neighbors(vertex) {
        neighbors[usize::from(of[*other as usize])] += 1;
    }
    let own = neighbors[usize::from(of[vertex as usize])];
    let room = (0..counts.len()).filter(|part| counts[*part] < limit && neighbors[*part] > 0);
    let target = room.max_by_key(|part| neighbors[*part]).unwrap_or_else(|| emptiest(counts));
    Candidate { vertex, loss: own - neighbors[target], target }
}

/// Returns the part with the fewest training vertices.
fn emptiest(counts: &[u64]) -> usize {
    (0..counts.len()).min_by_key(|part| counts[*part]).unwrap_or(0)
}
