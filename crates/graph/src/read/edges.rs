//! Edges in the order of a file.

use super::naming::Naming;
use crate::adjacency::Adjacency;
use crate::error::Error;
use crate::sample::{Weights, is_weight};
use crate::store::Ids;

/// Hint for a file that seems to number vertices from 1.
const ONE_BASED: &str = "--one-based, if the file numbers vertices from 1";
/// Number of vertices that a file may have without edges.
const VERTICES_FREE: u64 = 1 << 20;
/// Number of further vertices that a file may have per edge.
const VERTICES_PER_EDGE: u64 = 64;

/// Edges of a graph, in the order of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edges {
    /// Number of vertices, which are `0..vertices`.
    pub vertices: u32,
    /// Source and destination of every edge.
    pub pairs: Vec<(u32, u32)>,
    /// Weight of every edge, if edges have weights.
    pub weights: Option<Vec<f32>>,
    /// Ids of all vertices, if the reader has numbered them.
    pub ids: Option<Ids>,
    /// Whether the file may number vertices from 1: it contains numbers of vertices, and has an edge of
    /// vertex 1, but no edge of vertex 0.
    pub seems_one_based: bool,
}

impl Edges {
    /// Creates edges between vertices that a file numbers itself or identifies by ids.
    ///
    /// # Errors
    /// If there are too many vertices for the edges, or more than `named`.
    pub(super) fn of_file(
        mut pairs: Vec<(u32, u32)>,
        naming: Option<Naming>,
        named: Option<u32>,
    ) -> Result<Edges, Error> {
        let ends = || pairs.iter().flat_map(|(a, b)| [*a, *b]);
        let found = ends().max().map_or(0, |most| u64::from(most) + 1);
        let seems_one_based = naming.is_none() && ends().min() == Some(1);
        let is_beyond = named.is_some_and(|named| found > u64::from(named));
        let vertices = match &naming {
            Some(naming) if found > 0 => naming.len() as u32,
            _ => count_vertices(found, pairs.len(), named).map_err(|error| {
                if seems_one_based && is_beyond { error.with_hint(ONE_BASED) } else { error }
            })?,
        };
        let ids = naming.map(|naming| naming.finish(&mut pairs));
        Ok(Edges { vertices, pairs, ids, seems_one_based, weights: None })
    }

    /// Returns the lists of in-neighbours.
    ///
    /// # Errors
    /// If an edge has a vertex that is not in `0..vertices`.
    pub fn adjacency(&self) -> Result<Adjacency, Error> {
        Adjacency::from_edges(self.vertices, &self.pairs)
    }

    /// Returns the lists of in-neighbours, and the weights of their edges by position, if edges have weights.
    ///
    /// # Errors
    /// If an edge has a vertex that is not in `0..vertices`, or a weight is negative or not finite.
    pub fn weighted(&self) -> Result<(Adjacency, Option<Weights>), Error> {
        match &self.weights {
            None => Ok((self.adjacency()?, None)),
            Some(weights) => {
                let made = Adjacency::from_weighted_edges(self.vertices, &self.pairs, weights)?;
                Ok((made.0, Some(made.1)))
            }
        }
    }
}

/// Checks that an edge can have this weight, and returns it.
///
/// # Errors
/// If it is negative or not finite; `place` is its position, and `text` its form in the file.
pub(super) fn checked(weight: f32, place: &str, text: &str) -> Result<f32, Error> {
    match is_weight(weight) {
        true => Ok(weight),
        false => {
            let hint = "--unweighted imports the edges without their weights";
            Err(Error::weight(place, text).with_hint(hint))
        }
    }
}

/// Checks that rows and columns of a matrix are the same vertices.
pub(super) fn ensure_square(rows: u64, columns: u64) -> Result<(), Error> {
    if rows == columns {
        return Ok(());
    }
    let error = Error::format(format!("a matrix of {rows} x {columns}, expected a square one"));
    Err(error.with_hint("give rows and columns one numbering, as scipy.sparse.block_array does"))
}

/// Returns the number of vertices of a file with `edges` edges, whose largest vertex implies `found`
/// vertices.
///
/// # Errors
/// If there are none, or too many for the number of edges, unless `named` gives the number.
pub(super) fn count_vertices(found: u64, edges: usize, named: Option<u32>) -> Result<u32, Error> {
    if let Some(named) = named {
        return match found <= u64::from(named) {
            true => Ok(named),
            false => Err(Error::vertex("the file", found - 1, named)),
        };
    }
    if found == 0 {
        let hint =
            "if a graph without edges is meant, give the number of its vertices with --vertices";
        let error = "no edges and no vertices, expected at least one edge".to_owned();
        return Err(Error::format(error).with_hint(hint));
    }
    let limit = VERTICES_FREE + VERTICES_PER_EDGE.saturating_mul(edges as u64);
    match u32::try_from(found) {
        Ok(vertices) if found <= limit && vertices < u32::MAX => Ok(vertices),
        _ => {
            let hint = "--relabel numbers the vertices that have edges, and keeps their ids; --vertices N says how many there are";
            let error = format!("{found} vertices with {edges} edges, expected at most {limit}");
            Err(Error::format(error).with_hint(hint))
        }
    }
}
