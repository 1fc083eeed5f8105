//! PaGraph's partitioner (Bai et al., "Efficient Data Loader for Fast Sampling-Based GNN Training on Large
//! Graphs", TPDS 2021).
//!
//! Training vertices are assigned one after the other, in random order. With `IN(v)` the in-neighbours of `v`
//! within the hops, `TV` the training vertices of a part and `PV` their closure, `v` is assigned to the part
//! with the largest
//!
//! `|TV ∩ IN(v)| * (mean of |TV| - |TV|) / |PV|`,
//!
//! and, of parts with equal scores, to the part with the fewest training vertices. The score of an empty
//! part is 0. Every other vertex is assigned to the smallest part whose closure contains it.

use thinwire_wire::random::{Key, permutation};

use super::reach::Reach;
use super::weights::Options;
use crate::adjacency::Adjacency;

/// The parts so far.
struct Dealt {
    parts: usize,
    /// Part of every training vertex that was assigned; `u16::MAX` for other vertices.
    of: Vec<u16>,
    /// Number of training vertices per part.
    training: Vec<u64>,
    /// Number of vertices per closure.
    closures: Vec<u64>,
    /// Words per vertex, with a bit for each part whose closure contains it.
    words: usize,
    bits: Vec<u64>,
}

pub(super) fn partition(graph: &Adjacency, training: &[u32], options: &Options) -> Vec<u16> {
    let mut dealt = Dealt::new(graph.vertices(), options.parts);
    let mut reach = Reach::new(graph, options.hops);
    let mean = training.len() as f64 / f64::from(options.parts);
    let key = Key { seed: options.seed, step: 0, tensor: 1 };
    for at in permutation(key, training.len() as u32) {
        let vertex = training[at as usize];
        let within = reach.of(&[vertex]);
        let part = best(&dealt.scores(within, mean), &dealt.training);
        dealt.give(vertex, within, part);
    }
    dealt.finish()
}

/// Returns the part with the largest score; of equal ones, the one with the fewest training vertices.
fn best(scores: &[f64], training: &[u64]) -> usize {
    let better = |a: &usize, b: &usize| {
        scores[*a].total_cmp(&scores[*b]).then(training[*b].cmp(&training[*a])).then(b.cmp(a))
    };
    (0..scores.len()).max_by(better).unwrap_or(0)
}

impl Dealt {
    fn new(vertices: u32, parts: u32) -> Dealt {
        let (vertices, parts) = (vertices as usize, parts as usize);
        let words = parts.div_ceil(64);
        Dealt {
            parts,
            of: vec![u16::MAX; vertices],
            training: vec![0; parts],
            closures: vec![0; parts],
            words,
            bits: vec![0; words * vertices],
        }
    }

    /// Returns the score of every part for a vertex with the in-neighbours `within`.
    fn scores(&self, within: &[u32], mean: f64) -> Vec<f64> {
        let mut common = vec![0_u64; self.parts];
        for vertex in within {
            if let Some(count) = common.get_mut(usize::from(self.of[*vertex as usize])) {
                *count += 1;
            }
        }
        let score = |part: usize| match (common[part], self.training[part], self.closures[part]) {
            (_, _, 0) => 0.0,
            (common, training, closure) => {
                common as f64 * (mean - training as f64) / closure as f64
            }
        };
        (0..self.parts).map(score).collect()
    }

    fn give(&mut self, vertex: u32, within: &[u32], part: usize) {
        self.of[vertex as usize] = part as u16;
        self.training[part] += 1;
        for vertex in within {
            let word = &mut self.bits[*vertex as usize * self.words + part / 64];
            self.closures[part] += u64::from(*word >> (part % 64) & 1 == 0);
            *word |= 1 << (part % 64);
        }
    }

    /// Assigns every other vertex to the smallest part whose closure contains it, or else to the smallest
    /// part.
    fn finish(mut self) -> Vec<u16> {
        let mut sizes = self.training.clone();
        for vertex in 0..self.of.len() {
            if self.of[vertex] == u16::MAX {
                let smallest = self.holders(vertex).min_by_key(|part| sizes[*part]);
                let any = || (0..sizes.len()).min_by_key(|part| sizes[*part]);
                let part = smallest.or_else(any).unwrap_or_default();
                sizes[part] += 1;
                self.of[vertex] = part as u16;
            }
        }
        self.of
    }

    /// Returns the parts whose closures contain a vertex.
    fn holders(&self, vertex: usize) -> impl Iterator<Item = usize> {
        let words = &self.bits[vertex * self.words..][..self.words];
        (0..self.parts).filter(move |part| words[part / 64] >> (part % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::partition::closure;

    proptest! {
        #[test]
        fn scores_are_those_of_the_formula(
            edges in prop::collection::vec((0_u32..20, 0_u32..20), 0..60),
            owners in prop::collection::vec(0_usize..4, 20),
            hops in 1_u32..4,
        ) {
            let graph = Adjacency::from_edges(20, &edges).unwrap();
            let (parts, mean) = (3, 5.0);
            let mut dealt = Dealt::new(20, parts);
            let mut reach = Reach::new(&graph, hops);
            // Owner 3 is for vertices that are no training vertices yet.
            for vertex in (0..20).filter(|vertex| owners[*vertex as usize] < 3) {
                let within = reach.of(&[vertex]);
                dealt.give(vertex, within, owners[vertex as usize]);
            }
            for vertex in (0..20).filter(|vertex| owners[*vertex as usize] == 3) {
                let scores = dealt.scores(reach.of(&[vertex]), mean);
                let near: BTreeSet<u32> = closure(&graph, &[vertex], hops).into_iter().collect();
                for (part, found) in scores.iter().enumerate().take(3) {
                    let training: BTreeSet<u32> =
                        (0..20).filter(|vertex| owners[*vertex as usize] == part).collect();
                    let all: BTreeSet<u32> = training
                        .iter()
                        .flat_map(|vertex| closure(&graph, &[*vertex], hops))
                        .collect();
                    let common = training.intersection(&near).count() as f64;
                    let room = mean - training.len() as f64;
                    let score = if all.is_empty() { 0.0 } else { common * room / all.len() as f64 };
                    prop_assert_eq!(*found, score);
                }
            }
        }
    }

    #[test]
    fn equal_scores_go_to_the_part_with_fewest_training_vertices() {
        assert_eq!(best(&[0.0, 0.0, 0.0], &[2, 1, 1]), 1);
        assert_eq!(best(&[0.1, 0.2, 0.2], &[0, 3, 2]), 2);
        assert_eq!(best(&[-1.0, -2.0], &[9, 0]), 0);
    }
}
