//! Vertices within some hops.

use crate::adjacency::Adjacency;

/// Walks over in-neighbours; all walks use the same memory.
pub(super) struct Reach<'a> {
    graph: &'a Adjacency,
    hops: u32,
    /// Number of the last walk that reached each vertex.
    met: Vec<u32>,
    walk: u32,
    found: Vec<u32>,
}

impl<'a> Reach<'a> {
    /// Creates walks of at most `hops` hops.
    pub fn new(graph: &'a Adjacency, hops: u32) -> Reach<'a> {
        let met = vec![0; graph.vertices() as usize];
        Reach { graph, hops, met, walk: 0, found: Vec::new() }
    }

    /// Returns the vertices of `roots`, and all vertices from which a root can be reached within the
    /// hops, each once.
    pub fn of(&mut self, roots: &[u32]) -> &[u32] {
        self.found.clear();
        self.walk = self.walk.wrapping_add(1);
        if self.walk == 0 {
            self.met.fill(0);
            self.walk = 1;
        }
        roots.iter().for_each(|root| self.meet(*root));
        let mut start = 0;
        for _ in 0..self.hops {
            let end = self.found.len();
            for at in start..end {
                let graph = self.graph;
                graph.neighbors(self.found[at]).iter().for_each(|vertex| self.meet(*vertex));
            }
            start = end;
        }
        &self.found
    }

    fn meet(&mut self, vertex: u32) {
        let met = &mut self.met[vertex as usize];
        if *met != self.walk {
            *met = self.walk;
            self.found.push(vertex);
        }
    }
}

/// Returns the closure of vertices: the vertices and all their in-neighbours within `hops` hops, ascending. A
/// rank that has the closure can compute batches of these vertices alone.
///
/// # Panics
/// If a vertex does not exist.
pub fn closure(graph: &Adjacency, vertices: &[u32], hops: u32) -> Vec<u32> {
    let mut closure = Reach::new(graph, hops).of(vertices).to_vec();
    closure.sort_unstable();
    closure
}
