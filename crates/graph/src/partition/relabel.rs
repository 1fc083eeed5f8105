//! New numbers of vertices, with which parts are ranges.

use super::Parts;
use crate::adjacency::Adjacency;
use crate::array::Array;
use crate::lists::sort;
use crate::sample::Weights;

/// Permutation of vertices: by part, and within a part in their previous order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relabelling {
    /// New number of every vertex.
    pub new: Vec<u32>,
    /// Old number of every vertex, by its new number.
    pub old: Vec<u32>,
    /// Part `p` has the new numbers `bounds[p]..bounds[p + 1]`.
    pub bounds: Vec<u32>,
}

impl Relabelling {
    /// Numbers the vertices of parts.
    pub fn new(parts: &Parts) -> Relabelling {
        let all: Vec<u32> = (0..parts.vertices()).collect();
        let dealt = parts.deal(&all);
        let mut bounds = vec![0];
        for part in &dealt {
            bounds.push(bounds[bounds.len() - 1] + part.len() as u32);
        }
        let old = dealt.concat();
        let mut new = vec![0; old.len()];
        (0..).zip(&old).for_each(|(number, vertex)| new[*vertex as usize] = number);
        Relabelling { new, old, bounds }
    }

    /// Returns a graph with the new numbers. Every list ascends.
    pub fn graph(&self, graph: &Adjacency) -> Adjacency {
        let (mut offsets, mut neighbors) = (vec![0], Vec::with_capacity(graph.edges() as usize));
        for vertex in &self.old {
            let start = neighbors.len();
            neighbors
                .extend(graph.neighbors(*vertex).iter().map(|other| self.new[*other as usize]));
            neighbors[start..].sort_unstable();
            offsets.push(neighbors.len() as u64);
        }
        Adjacency::from_arrays(Array::Owned(offsets), Array::Owned(neighbors))
            .expect("a permutation of a graph is one")
    }

    /// Returns the weights of edges under the new numbers, given the graph and its weights under the old
    /// ones.
    ///
    /// # Panics
    /// If the numbers of weights and edges differ.
    pub fn weights(&self, graph: &Adjacency, weights: &Weights) -> Weights {
        let (values, mut moved) = (weights.values(), Vec::with_capacity(weights.values().len()));
        let mut entries = Vec::new();
        for vertex in &self.old {
            let new = graph.neighbors(*vertex).iter().map(|other| self.new[*other as usize]);
            entries.clear();
            entries.extend(new.zip(values[graph.range(*vertex)].iter().copied()));
            sort(&mut entries);
            moved.extend(entries.iter().map(|(_, weight)| *weight));
        }
        Weights::new(moved).expect("weights in another order are weights")
    }
}
