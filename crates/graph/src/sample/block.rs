//! Samples: the vertices of a mini-batch and its blocks.

use std::ops::Range;

/// Edges of one hop, in compressed sparse columns with the batch's own vertex numbers.
///
/// Column `i` is the destination `destinations.start + i`. Its sources are
/// `neighbors[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Numbers of the vertices that receive messages.
    pub destinations: Range<u32>,
    /// Number of the batch's vertices up to this hop: sources are `0..sources`, which begin with the
    /// destinations.
    pub sources: u32,
    /// Positions in `neighbors` at which the columns begin, and the end of the last one.
    pub offsets: Vec<u32>,
    /// Number of the source of every edge.
    pub neighbors: Vec<u32>,
    /// Position of every edge in the graph ([`Adjacency::range`](crate::Adjacency::range)), which is also the
    /// position of its weight and features.
    pub edges: Vec<u64>,
}

impl Block {
    /// Returns the sources of one destination, `destinations.start + column`.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn neighbors_of(&self, column: usize) -> &[u32] {
        &self.neighbors[self.offsets[column] as usize..self.offsets[column + 1] as usize]
    }

    pub(super) fn clear(&mut self) {
        self.offsets.clear();
        self.offsets.push(0);
        self.neighbors.clear();
        self.edges.clear();
    }
}

/// Sample of one mini-batch. Filling it again reuses its buffers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Vertices of the batch in the order of their first occurrence, seeds first. A vertex's index is its
    /// number in the blocks.
    pub vertices: Vec<u32>,
    /// Number of seeds; the seeds are `vertices[..seeds]`.
    pub seeds: u32,
    /// One block per hop, beginning with the hop of the seeds. A network's first layer computes the last
    /// block.
    pub blocks: Vec<Block>,
}

impl Sample {
    /// Creates an empty sample.
    pub fn new() -> Sample {
        Sample::default()
    }

    /// Returns the number of edges in all blocks.
    pub fn edges(&self) -> usize {
        self.blocks.iter().map(|block| block.edges.len()).sum()
    }

    pub(super) fn clear(&mut self, hops: usize) {
        self.vertices.clear();
        self.seeds = 0;
        self.blocks.resize_with(hops, Block::default);
        self.blocks.iter_mut().for_each(Block::clear);
    }
}
