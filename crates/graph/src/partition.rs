//! Partitioners, which decide which rank has which vertices.
//!
//! A part has training vertices, whose batches its rank computes, and further vertices, whose features
//! the rank stores. Its *closure* is its training vertices with all in-neighbours within some hops: the
//! vertices that its batches can use. A part is self-reliant if its rank has the whole closure;
//! otherwise the missing vertices of the closure are remote. Good partitions give all ranks the same
//! number of training vertices, and closures that overlap little.

mod level;
mod metis;
mod pagraph;
mod reach;
mod relabel;
mod report;
mod stream;
mod weights;

use std::fmt;

use thinwire_wire::random::{Key, permutation};

pub use reach::closure;
pub use relabel::Relabelling;
pub use report::{Report, choose};
pub use weights::Options;

use stream::Rule;
use weights::Weights;

use crate::adjacency::Adjacency;
use crate::error::Error;

/// Method of partitioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Assigns training vertices, and separately all other vertices, to the parts at random, the same number
    /// to each part.
    Hash,
    /// Cuts the vertices, in the order of their numbers, into ranges of equal weight.
    Ranges,
    /// Linear deterministic greedy: assigns each vertex to the part with most of its neighbours, and
    /// prefers parts with more room.
    Ldg,
    /// Assigns each vertex to the part with the highest score: the number of the vertex's neighbours in
    /// the part, minus a cost that grows with the part's size.
    Fennel,
    /// Assigns each training vertex to the part that has the most training vertices within the hops, divided
    /// by the size of the part's closure.
    PaGraph,
    /// Multilevel k-way partitioning, in which all training vertices together weigh as much as all vertices;
    /// needs feature `metis`.
    Metis,
}

impl Method {
    /// Returns all methods of this build.
    pub fn all() -> Vec<Method> {
        let mut all =
            vec![Method::Hash, Method::Ranges, Method::Ldg, Method::Fennel, Method::PaGraph];
        all.extend(cfg!(feature = "metis").then_some(Method::Metis));
        all
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Hash => "hash",
            Method::Ranges => "ranges",
            Method::Ldg => "ldg",
            Method::Fennel => "fennel",
            Method::PaGraph => "pagraph",
            Method::Metis => "metis",
        })
    }
}

/// Part of every vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    count: u32,
    of: Vec<u16>,
}

impl Parts {
    /// Creates a partition from the part of every vertex.
    ///
    /// # Errors
    /// If a part is not below `count`.
    pub fn new(count: u32, of: Vec<u16>) -> Result<Parts, Error> {
        match of.iter().find(|part| u32::from(**part) >= count) {
            None => Ok(Parts { count, of }),
            Some(part) => {
                Err(Error::value(format!("part {part} of a vertex, expected parts of 0..{count}")))
            }
        }
    }

    /// Returns the number of parts.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the part of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn of(&self, vertex: u32) -> u32 {
        u32::from(self.of[vertex as usize])
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        self.of.len() as u32
    }

    /// Returns the vertices of each part, in the order in which they are given.
    pub fn deal(&self, vertices: &[u32]) -> Vec<Vec<u32>> {
        let mut dealt = vec![Vec::new(); self.count as usize];
        vertices.iter().for_each(|vertex| dealt[self.of(*vertex) as usize].push(*vertex));
        dealt
    }
}

/// Partitions a graph with training vertices `training`.
///
/// # Errors
/// If there are no parts, more parts than vertices, no training vertices, one that does not exist or is
/// repeated, a bound of balance below 1, or the method cannot handle the graph.
pub fn partition(
    graph: &Adjacency,
    training: &[u32],
    method: Method,
    options: &Options,
) -> Result<Parts, Error> {
    let weights = Weights::new(graph.vertices(), training, options)?;
    let of = match method {
        Method::Hash => hash(&weights, options),
        Method::Ranges => ranges(&weights, options),
        Method::PaGraph => pagraph::partition(graph, training, options),
        Method::Ldg | Method::Fennel | Method::Metis => {
            let both = graph.symmetrized();
            let mut of = match method {
                Method::Ldg => stream::stream(&both, &weights, Rule::Ldg, options),
                Method::Fennel => stream::stream(&both, &weights, Rule::Fennel, options),
                _ => metis::partition(&both, &weights, options)?,
            };
            level::level(&both, &weights, options, &mut of);
            of
        }
    };
    Parts::new(options.parts, of)
}

/// Assigns training vertices, and separately the others, to parts in turn, in random order.
fn hash(weights: &Weights, options: &Options) -> Vec<u16> {
    let vertices = weights.is_training.len();
    let mut of = vec![0; vertices];
    let mut dealt = [0; 2];
    for vertex in permutation(Key { seed: options.seed, step: 0, tensor: 0 }, vertices as u32) {
        let turn: &mut u32 = &mut dealt[usize::from(weights.is_training[vertex as usize])];
        of[vertex as usize] = (*turn % options.parts) as u16;
        *turn += 1;
    }
    of
}

/// Cuts the vertices, in the order of their numbers, into ranges of equal weight.
fn ranges(weights: &Weights, options: &Options) -> Vec<u16> {
    let (share, last) = (weights.total() / f64::from(options.parts), options.parts - 1);
    let mut before = 0.0;
    let part = |vertex: usize| {
        // The middle of a vertex decides, so that no part has more than half a vertex too much.
        let middle = before + weights.of(vertex) / 2.0;
        before += weights.of(vertex);
        ((middle / share) as u32).min(last) as u16
    };
    (0..weights.is_training.len()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { parts: 2, hops: 2, balance_max: 1.02, seed: 1 };

    #[test]
    fn bad_input_is_refused_with_both_values() {
        let graph = Adjacency::from_edges(3, &[(0, 1)]).unwrap();
        let message = |training: &[u32], options: Options| {
            partition(&graph, training, Method::Hash, &options).unwrap_err().to_string()
        };
        assert_eq!(
            message(&[0], Options { parts: 4, ..OPTIONS }),
            "4 parts of 3 vertices, expected 1 to 3"
        );
        assert_eq!(message(&[], OPTIONS), "no training vertices");
        assert_eq!(
            message(&[3], OPTIONS),
            "the training set has vertex 3, expected vertices of 0..3"
        );
        assert_eq!(message(&[1, 1], OPTIONS), "training vertex 1 is listed twice, expected once");
        assert_eq!(
            message(&[1], Options { balance_max: 0.5, ..OPTIONS }),
            "balance 0.5, expected 1 or more"
        );
        let error = Parts::new(2, vec![0, 2]).unwrap_err();
        assert_eq!(error.to_string(), "part 2 of a vertex, expected parts of 0..2");
    }
}
