//! Lists of neighbours from which a graph is built.

use crate::adjacency::Adjacency;
use crate::array::Array;

/// List of in-neighbours of every vertex. Each neighbour has the value of its edge, such as a weight, or
/// `()`.
pub(crate) struct Lists<T> {
    offsets: Vec<u64>,
    entries: Vec<(u32, T)>,
}

impl<T: Copy + Default + PartialOrd> Lists<T> {
    /// Sorts edges, each with its source, value and destination, by destination in two passes, keeping their
    /// order per destination (counting sort).
    pub fn scatter<I>(vertices: u32, edges: impl Fn() -> I) -> Lists<T>
    where
        I: Iterator<Item = ((u32, T), u32)>,
    {
        let mut offsets = vec![0_u64; vertices as usize + 1];
        edges().for_each(|(_, destination)| offsets[destination as usize + 1] += 1);
        for vertex in 0..vertices as usize {
            offsets[vertex + 1] += offsets[vertex];
        }
        let mut places = offsets.clone();
        let mut entries = vec![(0, T::default()); offsets[vertices as usize] as usize];
        for (entry, destination) in edges() {
            let place = &mut places[destination as usize];
            entries[*place as usize] = entry;
            *place += 1;
        }
        Lists { offsets, entries }
    }

    /// Sorts every list by neighbour, and edges of the same neighbour by descending value.
    pub fn sort(&mut self) {
        for ends in self.offsets.windows(2) {
            sort(&mut self.entries[ends[0] as usize..ends[1] as usize]);
        }
    }

    /// Keeps the first of several equal neighbours that are adjacent in a list.
    pub fn dedup(&mut self) {
        let (mut start, mut kept) = (0, 0);
        for vertex in 0..self.offsets.len() - 1 {
            let (first, end) = (kept, self.offsets[vertex + 1] as usize);
            for at in start..end {
                let entry = self.entries[at];
                if kept == first || self.entries[kept - 1].0 != entry.0 {
                    self.entries[kept] = entry;
                    kept += 1;
                }
            }
            (start, self.offsets[vertex + 1]) = (end, kept as u64);
        }
        self.entries.truncate(kept);
    }

    /// Returns the graph, and the values of its edges by their positions.
    pub fn split(self) -> (Adjacency, Vec<T>) {
        let values = self.entries.iter().map(|(_, value)| *value).collect();
        let neighbors = self.entries.into_iter().map(|(neighbor, _)| neighbor).collect();
        let (offsets, neighbors) = (Array::Owned(self.offsets), Array::Owned(neighbors));
        let graph = Adjacency::from_arrays(offsets, neighbors);
        (graph.expect("sources and destinations are vertices"), values)
    }
}

/// Sorts a list by neighbour, and edges of the same neighbour by descending value.
pub(crate) fn sort<T: PartialOrd>(entries: &mut [(u32, T)]) {
    entries.sort_unstable_by(|(a, x), (b, y)| {
        a.cmp(b).then(y.partial_cmp(x).unwrap_or(std::cmp::Ordering::Equal))
    });
}
