//! R-MAT (Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM'04).

use rayon::prelude::*;
use thinwire_wire::random::{Key, permutation, unit};

use crate::adjacency::Adjacency;
use crate::error::Error;

/// Largest scale: the number of vertices is below 2^31.
const SCALE_MAX: u32 = 30;

/// Recursive matrix: each bit of an edge's source and destination is drawn by the same four chances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rmat {
    /// Logarithm of the number of vertices.
    pub scale: u32,
    /// Edges per vertex.
    pub degree: u32,
    /// Chances of the upper left, upper right and lower left quarter; the rest is the lower right.
    pub chances: [f32; 3],
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Rmat {
    /// Chances of the benchmark Graph500.
    pub const GRAPH500: [f32; 3] = [0.57, 0.19, 0.19];

    /// Generates the graph, with vertices in random order. Repeated edges and loops are kept.
    ///
    /// # Errors
    /// If the scale exceeds 30, or chances are negative or sum to more than 1.
    pub fn graph(&self) -> Result<Adjacency, Error> {
        if self.scale > SCALE_MAX {
            return Err(Error::value(format!("scale {}, expected 0 to {SCALE_MAX}", self.scale)));
        }
        let sum: f32 = self.chances.iter().sum();
        if !(self.chances.iter().all(|chance| *chance >= 0.0) && sum <= 1.0) {
            let [a, b, c] = self.chances;
            return Err(Error::value(format!(
                "chances {a}, {b} and {c}, expected three numbers of at least 0 that sum to at most 1"
            )));
        }
        let vertices = 1_u32 << self.scale;
        let places = permutation(Key { seed: self.seed, step: 0, tensor: 1 }, vertices);
        let count = u64::from(vertices) * u64::from(self.degree);
        let place = |(a, b): (u32, u32)| (places[a as usize], places[b as usize]);
        let edges: Vec<_> = (0..count).into_par_iter().map(|edge| place(self.edge(edge))).collect();
        Adjacency::from_edges(vertices, &edges)
    }

    fn edge(&self, edge: u64) -> (u32, u32) {
        let key = Key { seed: self.seed, step: edge, tensor: 0 };
        let [a, b, c] = self.chances;
        let (mut source, mut destination, mut words) = (0, 0, [0; 4]);
        for level in 0..self.scale {
            if level % 4 == 0 {
                words = key.words(u64::from(level / 4));
            }
            let draw = unit(words[(level % 4) as usize]);
            let (down, right) = match draw {
                draw if draw < a => (0, 0),
                draw if draw < a + b => (0, 1),
                draw if draw < a + b + c => (1, 0),
                _ => (1, 1),
            };
            (source, destination) = (source << 1 | down, destination << 1 | right);
        }
        (source, destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RMAT: Rmat = Rmat { scale: 10, degree: 16, chances: Rmat::GRAPH500, seed: 3 };

    #[test]
    fn quarters_have_their_chances() {
        let count = RMAT.degree as usize * 1024;
        let mut quarters = [0.0; 4];
        for edge in 0..count as u64 {
            let (source, destination) = RMAT.edge(edge);
            quarters[(source >> 9 << 1 | destination >> 9) as usize] += 1.0 / count as f64;
        }
        for (found, expected) in quarters.into_iter().zip([0.57, 0.19, 0.19, 0.05]) {
            assert!((found - expected).abs() < 0.015, "{quarters:?}");
        }
    }

    #[test]
    fn a_graph_depends_on_its_seed_and_not_on_threads() {
        let of_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| RMAT.graph().unwrap())
        };
        let graph = of_threads(1);
        assert_eq!((graph.vertices(), graph.edges()), (1024, 16384));
        assert_eq!(of_threads(3), graph);
        assert_ne!(Rmat { seed: 4, ..RMAT }.graph().unwrap(), graph);
        let largest = (0..1024).map(|vertex| graph.degree(vertex)).max().unwrap();
        assert!(largest > 10 * 16, "{largest}");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let error = Rmat { scale: 31, ..RMAT }.graph().unwrap_err();
        assert_eq!(error.to_string(), "scale 31, expected 0 to 30");
        assert!(Rmat { chances: [0.5, 0.5, 0.1], ..RMAT }.graph().is_err());
        assert!(Rmat { chances: [f32::NAN, 0.5, 0.1], ..RMAT }.graph().is_err());
    }
}
