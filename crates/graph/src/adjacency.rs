//! Neighbours of every vertex, in compressed sparse columns.

use std::ops::Range;

use crate::array::Array;
use crate::error::Error;
use crate::lists::Lists;
use crate::sample::Weights;

/// In-neighbours of every vertex: the vertices from which the vertex receives messages. Samplers draw
/// among them.
///
/// Vertices are `0..vertices`. The list of vertex `v` is `neighbors[offsets[v]..offsets[v + 1]]`: column `v`
/// of the adjacency matrix in compressed sparse columns (CSC), or row `v` of its transpose (CSR). An edge is
/// identified by its position in `neighbors`, which is also the position of its weight. The arrays of a graph
/// from a [`Store`](crate::Store) are in the mapped file.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjacency {
    offsets: Array<u64>,
    neighbors: Array<u32>,
}

impl Adjacency {
    /// Creates a graph from its arrays.
    ///
    /// # Errors
    /// If there are no offsets, there are 2^32 or more vertices, the offsets do not ascend from 0 to the
    /// number of neighbours, or a neighbour is not a vertex.
    pub fn new(offsets: Vec<u64>, neighbors: Vec<u32>) -> Result<Adjacency, Error> {
        Adjacency::from_arrays(Array::Owned(offsets), Array::Owned(neighbors))
    }

    /// Creates a graph from its arrays, which may be in memory or in a mapped file.
    ///
    /// # Errors
    /// As [`Adjacency::new`].
    pub(crate) fn from_arrays(
        offsets: Array<u64>,
        neighbors: Array<u32>,
    ) -> Result<Adjacency, Error> {
        let vertices =
            offsets.len().checked_sub(1).and_then(|vertices| u32::try_from(vertices).ok());
        let Some(vertices) = vertices else {
            let found = offsets.len();
            return Err(Error::length(format!("{found} offsets, expected 1 to {}", u32::MAX)));
        };
        let ends = (offsets[0], offsets[vertices as usize]);
        if ends != (0, neighbors.len() as u64) || !offsets.is_sorted() {
            let (first, last) = ends;
            return Err(Error::length(format!(
                "offsets go from {first} to {last}, expected ascending ones from 0 to the number of edges, {}",
                neighbors.len()
            )));
        }
        if let Some(vertex) = neighbors.iter().find(|vertex| **vertex >= vertices) {
            return Err(Error::vertex("a list of neighbours", u64::from(*vertex), vertices));
        }
        Ok(Adjacency { offsets, neighbors })
    }

    /// Creates a graph of `vertices` vertices from edges `(source, destination)`. Every list of neighbours
    /// ascends; repeated edges are kept.
    ///
    /// # Errors
    /// If an edge has a vertex that is not in `0..vertices`.
    pub fn from_edges(vertices: u32, edges: &[(u32, u32)]) -> Result<Adjacency, Error> {
        check_edges(vertices, edges)?;
        let edges = || edges.iter().map(|(source, destination)| ((*source, ()), *destination));
        let mut lists = Lists::scatter(vertices, edges);
        lists.sort();
        Ok(lists.split().0)
    }

    /// Creates the graph of [`Adjacency::from_edges`] from edges with one weight each. Also returns the
    /// weights, by the positions of edges in the graph.
    ///
    /// # Errors
    /// As [`Adjacency::from_edges`] and [`Weights::new`], or if the numbers of weights and edges differ.
    pub fn from_weighted_edges(
        vertices: u32,
        edges: &[(u32, u32)],
        weights: &[f32],
    ) -> Result<(Adjacency, Weights), Error> {
        check_edges(vertices, edges)?;
        Weights::check_length(weights.len(), edges.len() as u64)?;
        let entry = |(edge, weight): (&(u32, u32), &f32)| ((edge.0, *weight), edge.1);
        let mut lists = Lists::scatter(vertices, || edges.iter().zip(weights).map(entry));
        lists.sort();
        let (graph, weights) = lists.split();
        Ok((graph, Weights::new(weights)?))
    }

    /// Checks that the mapped file of the graph, if it has one, was not changed.
    ///
    /// # Errors
    /// If the file was changed; data that was read after the change may be wrong.
    pub fn ensure_unchanged(&self) -> Result<(), Error> {
        self.neighbors.ensure_unchanged()
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        (self.offsets.len() - 1) as u32
    }

    /// Returns the number of edges, including repeated ones.
    pub fn edges(&self) -> u64 {
        self.neighbors.len() as u64
    }

    /// Returns the position at which the list of every vertex begins, and the end of the last list.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Returns the lists of all vertices, one after the other.
    pub fn all_neighbors(&self) -> &[u32] {
        &self.neighbors
    }

    /// Returns the in-neighbours of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn neighbors(&self, vertex: u32) -> &[u32] {
        &self.neighbors[self.range(vertex)]
    }

    /// Returns the positions of the edges that end in a vertex, in the order of its neighbours.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn range(&self, vertex: u32) -> Range<usize> {
        let vertex = vertex as usize;
        self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize
    }

    /// Returns the number of edges that end in a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn degree(&self, vertex: u32) -> usize {
        self.range(vertex).len()
    }

    /// Returns the graph with the direction of every edge reversed. Lists ascend.
    pub fn transpose(&self) -> Adjacency {
        let turned = || self.pairs().map(|(source, destination)| ((destination, ()), source));
        Lists::scatter(self.vertices(), turned).split().0
    }

    /// Returns the graph in which every edge has both directions, without repeated edges. Lists ascend.
    pub fn symmetrized(&self) -> Adjacency {
        let both = || self.pairs().flat_map(|(a, b)| [((a, ()), b), ((b, ()), a)]);
        let mut lists = Lists::scatter(self.vertices(), both);
        lists.sort();
        lists.dedup();
        lists.split().0
    }

    /// Returns the graph of [`Adjacency::symmetrized`] and the weights of its edges. An edge that
    /// replaces several edges has the largest of their weights.
    ///
    /// # Errors
    /// If the numbers of weights and edges differ.
    pub fn symmetrized_with(&self, weights: &Weights) -> Result<(Adjacency, Weights), Error> {
        Weights::check_length(weights.values().len(), self.edges())?;
        let weighted = || self.pairs().zip(weights.values());
        let both = || weighted().flat_map(|((a, b), w)| [((a, *w), b), ((b, *w), a)]);
        let mut lists = Lists::scatter(self.vertices(), both);
        lists.sort();
        lists.dedup();
        let (graph, weights) = lists.split();
        Ok((graph, Weights::new(weights)?))
    }

    /// Returns all edges as `(source, destination)`, by ascending destination.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32)> {
        let vertices = 0..self.vertices();
        vertices
            .flat_map(|vertex| self.neighbors(vertex).iter().map(move |&source| (source, vertex)))
    }
}

fn check_edges(vertices: u32, edges: &[(u32, u32)]) -> Result<(), Error> {
    match edges.iter().find(|(a, b)| *a.max(b) >= vertices) {
        None => Ok(()),
        Some((source, destination)) => {
            let vertex = u64::from(*source.max(destination));
            Err(Error::vertex(&format!("edge {source} {destination}"), vertex, vertices))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_have_every_edge_and_no_other(edges in prop::collection::vec((0_u32..9, 0_u32..9), 0..60)) {
            let graph = Adjacency::from_edges(9, &edges).unwrap();
            let (mut expected, mut found) = (edges.clone(), graph.pairs().collect::<Vec<_>>());
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(&graph.transpose().transpose(), &graph);
            let again = Adjacency::new(graph.offsets().to_vec(), graph.all_neighbors().to_vec()).unwrap();
            prop_assert_eq!(again, graph);
        }

        #[test]
        fn a_symmetrized_graph_has_both_ways_once(edges in prop::collection::vec((0_u32..9, 0_u32..9), 0..60)) {
            let both: BTreeSet<_> = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
            let graph = Adjacency::from_edges(9, &edges).unwrap().symmetrized();
            prop_assert_eq!(graph.edges(), both.len() as u64);
            prop_assert_eq!(graph.pairs().collect::<BTreeSet<_>>(), both);
            prop_assert_eq!(&graph.transpose(), &graph);
        }

        #[test]
        fn weights_stay_with_their_edges(edges in prop::collection::vec((0_u32..6, 0_u32..6, 0_u8..9), 0..60)) {
            let (pairs, weights): (Vec<_>, Vec<_>) =
                edges.iter().map(|&(a, b, weight)| ((a, b), f32::from(weight))).unzip();
            let (graph, found) = Adjacency::from_weighted_edges(6, &pairs, &weights).unwrap();
            prop_assert_eq!(&graph, &Adjacency::from_edges(6, &pairs).unwrap());
            let sorted = |edges: Vec<((u32, u32), f32)>| {
                let mut edges: Vec<_> = edges.into_iter().map(|(edge, weight)| (edge, weight as u8)).collect();
                edges.sort_unstable();
                edges
            };
            let weighted = graph.pairs().zip(found.values().iter().copied()).collect();
            prop_assert_eq!(sorted(weighted), sorted(pairs.into_iter().zip(weights).collect()));
            let (both, largest) = graph.symmetrized_with(&found).unwrap();
            prop_assert_eq!(&both, &graph.symmetrized());
            let mut expected = BTreeMap::new();
            for (a, b, weight) in edges {
                for edge in [(a, b), (b, a)] {
                    let kept = expected.entry(edge).or_insert(weight);
                    *kept = weight.max(*kept);
                }
            }
            let weighted = both.pairs().zip(largest.values().iter().map(|weight| *weight as u8));
            prop_assert_eq!(weighted.collect::<BTreeMap<_, _>>(), expected);
        }
    }

    #[test]
    fn arrays_that_are_no_graph_are_refused() {
        for (offsets, neighbors, message) in [
            (vec![], vec![], "0 offsets, expected 1 to 4294967295"),
            (
                vec![0, 2],
                vec![0],
                "offsets go from 0 to 2, expected ascending ones from 0 to the number of edges, 1",
            ),
            (
                vec![0, 2, 1],
                vec![0],
                "offsets go from 0 to 1, expected ascending ones from 0 to the number of edges, 1",
            ),
            (vec![0, 1], vec![1], "a list of neighbours has vertex 1, expected vertices of 0..1"),
        ] {
            assert_eq!(Adjacency::new(offsets, neighbors).unwrap_err().to_string(), message);
        }
        let error = Adjacency::from_edges(2, &[(0, 1), (5, 1)]).unwrap_err();
        assert_eq!(error.to_string(), "edge 5 1 has vertex 5, expected vertices of 0..2");
        let error = Adjacency::from_weighted_edges(2, &[(0, 1)], &[]).unwrap_err();
        assert_eq!(error.to_string(), "0 weights, expected one per edge, 1");
    }
}
