//! Inclusion: the probability that a batch uses a vertex.
//!
//! Kaler et al., "Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion
//! Analysis and Caching" (MLSys 2023, section 3): with p the probabilities of one hop, those of the next are
//! `1 - Π (1 - t(u, v) p(v))` over the vertices `v` that may draw `u`, where `t` is the probability that they
//! do. Vertices are taken as independent.

use crate::adjacency::Adjacency;
use crate::sample::{Draw, FanOut, Sampling};

/// Returns the probability of every vertex to be in a batch of at most `batch` of the training vertices.
///
/// # Panics
/// If a training vertex does not exist, or weights of `sampling` are not one per edge.
pub fn inclusion(graph: &Adjacency, sampling: &Sampling, training: &[u32], batch: u32) -> Vec<f64> {
    let mut reached = vec![0.0; graph.vertices() as usize];
    let seed = f64::from(batch) / training.len().max(1) as f64;
    training.iter().for_each(|vertex| reached[*vertex as usize] = seed.min(1.0));
    // Logarithm of the probability that no hop so far has used a vertex.
    let mut absent: Vec<f64> = reached.iter().map(|chance| (-chance).ln_1p()).collect();
    let mut misses = vec![0.0; reached.len()];
    for fan_out in &sampling.fan_outs {
        misses.fill(0.0);
        for vertex in 0..graph.vertices() {
            let chance = reached[vertex as usize];
            if chance > 0.0 {
                let draws = draws(graph, sampling, *fan_out, vertex);
                for (neighbor, drawn) in graph.neighbors(vertex).iter().zip(draws) {
                    misses[*neighbor as usize] += (-chance * drawn).ln_1p();
                }
            }
        }
        for ((reached, absent), miss) in reached.iter_mut().zip(&mut absent).zip(&misses) {
            *reached = -miss.exp_m1();
            *absent += miss;
        }
    }
    absent.into_iter().map(|absent| -absent.exp_m1()).collect()
}

/// Returns for every in-edge of a vertex the probability that the vertex draws it; for weights an estimate.
fn draws(
    graph: &Adjacency,
    sampling: &Sampling,
    fan_out: FanOut,
    vertex: u32,
) -> impl Iterator<Item = f64> {
    let range = graph.range(vertex);
    let degree = range.len() as f64;
    let weights = sampling.weights().map(|weights| &weights[range.clone()]);
    let sum: f64 = weights.iter().flat_map(|weights| weights.iter()).map(|w| f64::from(*w)).sum();
    let with_replacement = matches!(sampling.draw, Draw::Repeated | Draw::WeightedRepeated(_));
    (0..range.len()).map(move |at| {
        let share = match weights {
            Some(weights) if sum > 0.0 => f64::from(weights[at]) / sum,
            Some(_) => 0.0,
            None => 1.0 / degree,
        };
        match fan_out {
            FanOut::All => 1.0,
            FanOut::Limit(limit) if with_replacement => 1.0 - (1.0 - share).powf(f64::from(limit)),
            FanOut::Limit(limit) => (f64::from(limit) * share).min(1.0),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sample::{Sample, Sampler, Weights};
    use thinwire_wire::random::{Key, permutation};

    /// Returns the fraction of many batches that use each vertex of a tree, in which vertices are
    /// independent.
    fn measure(graph: &Adjacency, sampling: &Sampling, training: &[u32], batch: usize) -> Vec<f64> {
        let (mut sample, mut sums) = (Sample::new(), vec![0.0; graph.vertices() as usize]);
        let mut sampler = Sampler::new(graph, sampling.clone()).unwrap();
        let rounds = 20_000;
        for step in 0..rounds {
            let key = Key { seed: 1, step, tensor: 0 };
            let order = permutation(key, training.len() as u32);
            let seeds: Vec<u32> = order[..batch].iter().map(|at| training[*at as usize]).collect();
            sampler.sample(graph, &seeds, Key { tensor: 1, ..key }, &mut sample).unwrap();
            sample.vertices.iter().for_each(|vertex| sums[*vertex as usize] += 1.0);
        }
        sums.iter().map(|sum| sum / rounds as f64).collect()
    }

    #[test]
    fn probabilities_are_those_of_sampled_batches() {
        // Two trees of seeds 0 and 1; vertices 2..6 and 6..8 hang on them, and 8..11 on vertex 2.
        let edges = [(2, 0), (3, 0), (4, 0), (5, 0), (6, 1), (7, 1), (8, 2), (9, 2), (10, 2)];
        let graph = Adjacency::from_edges(12, &edges).unwrap();
        let values = (1..=graph.edges()).map(|edge| (edge % 4) as f32).collect();
        let weighted = Draw::WeightedRepeated(Arc::new(Weights::new(values).unwrap()));
        for draw in [Draw::Distinct, Draw::Repeated, weighted] {
            // A hop without expanding 0 and 1 again, which would not be independent of the first.
            let frontier = crate::sample::Frontier::New;
            let sampling = Sampling { draw, frontier, ..Sampling::new(&[2, 2]) };
            let found = inclusion(&graph, &sampling, &[0, 1], 1);
            let expected = measure(&graph, &sampling, &[0, 1], 1);
            for (vertex, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!((found - expected).abs() < 0.015, "{vertex}: {found}, {expected}");
            }
            assert_eq!(found[11], 0.0);
        }
    }
}
