//! Order of rows: a permutation of vertices, best first.

use crate::adjacency::Adjacency;
use crate::error::Error;

/// Order of the feature rows of all vertices by their worth in a cache.
///
/// Features that are stored in this order make the cached rows a prefix: the row of a vertex is its
/// [`place`](Order::place).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    best_first: Vec<u32>,
    places: Vec<u32>,
}

impl Order {
    /// Creates an order from all vertices, best first.
    ///
    /// # Errors
    /// If a vertex is missing or occurs twice.
    pub fn new(best_first: Vec<u32>) -> Result<Order, Error> {
        let vertices = best_first.len() as u32;
        let mut places = vec![u32::MAX; best_first.len()];
        for (place, vertex) in (0..).zip(&best_first) {
            let name = format!("place {place} of the order");
            let Some(entry) = places.get_mut(*vertex as usize) else {
                return Err(Error::vertex(&name, u64::from(*vertex), vertices));
            };
            if *entry != u32::MAX {
                let context =
                    format!("{name} has vertex {vertex}, which place {entry} has already");
                return Err(Error::value(context));
            }
            *entry = place;
        }
        Ok(Order { best_first, places })
    }

    /// Orders vertices by descending score, then by ascending number.
    pub fn by_score(scores: &[f64]) -> Order {
        let mut best_first: Vec<u32> = (0..scores.len() as u32).collect();
        let score = |vertex: &u32| scores[*vertex as usize];
        best_first.sort_by(|a, b| score(b).total_cmp(&score(a)));
        Order::new(best_first).expect("sorting keeps every vertex")
    }

    /// Orders vertices by their out-degree, which is how often a vertex is an in-neighbour of another.
    pub fn by_degree(graph: &Adjacency) -> Order {
        let mut degrees = vec![0.0; graph.vertices() as usize];
        graph.pairs().for_each(|(source, _)| degrees[source as usize] += 1.0);
        Order::by_score(&degrees)
    }

    /// Returns the vertices, best first.
    pub fn best_first(&self) -> &[u32] {
        &self.best_first
    }

    /// Returns the place of a vertex in the order.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn place(&self, vertex: u32) -> u32 {
        self.places[vertex as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vertices_are_ordered_by_score_then_by_number() {
        let order = Order::by_score(&[0.5, f64::NEG_INFINITY, 2.0, 0.5, 0.0]);
        assert_eq!(order.best_first(), [2, 0, 3, 4, 1]);
        assert_eq!([0, 1, 2, 3, 4].map(|vertex| order.place(vertex)), [1, 4, 0, 2, 3]);
    }

    #[test]
    fn degrees_count_what_samplers_may_draw() {
        // Vertex 2 is an in-neighbour of three others; vertex 0 has three in-neighbours.
        let edges = [(2, 0), (2, 1), (2, 3), (1, 0), (3, 0)];
        let graph = Adjacency::from_edges(4, &edges).unwrap();
        assert_eq!(Order::by_degree(&graph).best_first(), [2, 1, 3, 0]);
    }

    #[test]
    fn what_is_no_permutation_is_refused() {
        let error = Order::new(vec![1, 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "place 1 of the order has vertex 2, expected vertices of 0..2"
        );
        let error = Order::new(vec![1, 1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "place 1 of the order has vertex 1, which place 0 has already"
        );
    }
}
