//! Generators of graphs.
//!
//! Every edge is a pure function of the seed and its number, so a graph is the same for any number of
//! threads.

mod blocks;
mod rmat;

pub use blocks::Blocks;
pub use rmat::Rmat;

use rayon::prelude::*;
use thinwire_wire::random::Key;

use crate::adjacency::Adjacency;
use crate::error::Error;

/// Generates a graph in which every vertex has edges to `degree` earlier vertices, in both directions,
/// without repeated edges or loops. The first vertices have fewer edges. This is preferential attachment
/// (Barabási and Albert, "Emergence of Scaling in Random Networks", 1999).
///
/// # Errors
/// If there are 2^31 or more vertices.
pub fn barabasi_albert(vertices: u32, degree: u32, seed: u64) -> Result<Adjacency, Error> {
    if vertices >= 1 << 31 {
        return Err(Error::value(format!("{vertices} vertices, expected fewer than 2147483648")));
    }
    let count = u64::from(vertices) * u64::from(degree);
    let edge = |edge: u64| (source(edge, degree), target(edge, degree, seed));
    let edges = (0..count).into_par_iter().map(edge).filter(|(a, b)| a != b).collect::<Vec<_>>();
    Ok(Adjacency::from_edges(vertices, &edges)?.symmetrized())
}

/// Returns the source of an edge.
///
/// Edge `e` goes from vertex `e / degree` to an end of an earlier edge; each end is equally likely. Ends are
/// numbered: `2e` is the source of edge `e`, which is known; `2e + 1` is its other end, for which the draw of
/// that edge is repeated, until the result is a source (Sanders and Schulz, "Scalable generation of
/// scale-free graphs", 2016).
fn source(edge: u64, degree: u32) -> u32 {
    (edge / u64::from(degree)) as u32
}

fn target(edge: u64, degree: u32, seed: u64) -> u32 {
    let mut end = 2 * edge + 1;
    while end % 2 == 1 {
        let key = Key { seed, step: end / 2, tensor: 2 };
        end = (uniform(key, 0) * end as f64) as u64;
    }
    source(end / 2, degree)
}

/// Returns a number in `[0, 1)` with 53 random bits; `draw` numbers the draws of a key.
fn uniform(key: Key, draw: u64) -> f64 {
    let [low, high, ..] = key.words(draw);
    ((u64::from(low) | u64::from(high) << 32) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_vertices_attract_most_edges() {
        let graph = barabasi_albert(4000, 4, 7).unwrap();
        assert_eq!(graph, barabasi_albert(4000, 4, 7).unwrap());
        assert_eq!(graph.transpose(), graph);
        assert!((0..4000).all(|vertex| !graph.neighbors(vertex).contains(&vertex)));
        let degrees = |range: std::ops::Range<u32>| {
            let count = f64::from(range.end - range.start);
            range.map(|vertex| graph.degree(vertex)).sum::<usize>() as f64 / count
        };
        let mean = degrees(0..4000);
        assert!((7.0..8.0).contains(&mean), "{mean}");
        // The expected degree of vertex v is degree * sqrt(vertices / v).
        let (early, late) = (degrees(5..20), degrees(3900..4000));
        assert!(early > 40.0 && late < 5.5, "{early} {late}");
    }
}
