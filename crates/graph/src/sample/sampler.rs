//! Sampler: expands the seeds of one mini-batch after another.
//!
//! A hop processes its destinations in pieces, and each piece in several passes: the first reads the
//! ranges of edges, the next draws, the next reads neighbours, and the last numbers them. Each pass
//! accesses one array at positions that are known in advance, so its memory accesses overlap.

use thinwire_wire::random::Key;

use super::block::{Block, Sample};
use super::draw::{Drawer, FanOut, Frontier, InEdges, Sampling};
use super::numbering::Numbering;
use super::stream::Stream;
use super::weights::Weights;
use crate::adjacency::Adjacency;
use crate::error::Error;

/// Number of destinations that are expanded at a time.
const PIECE: usize = 128;

/// Sampler of neighbours. It uses 8 bytes for every vertex of the graph and its buffers, and allocates no
/// more memory once batches have stopped growing. Each thread has its own sampler.
///
/// ```
/// use thinwire_graph::{Adjacency, Sample, Sampler, Sampling};
/// use thinwire_wire::random::Key;
///
/// let graph = Adjacency::from_edges(4, &[(1, 0), (2, 0), (3, 0), (0, 3)])?;
/// let mut sampler = Sampler::new(&graph, Sampling::new(&[2, 2]))?;
/// let mut sample = Sample::new();
/// sampler.sample(&graph, &[0], Key { seed: 7, step: 0, tensor: 0 }, &mut sample)?;
/// assert_eq!(sample.blocks[0].neighbors, [1, 2]);
/// assert!(sample.vertices[1..].iter().all(|vertex| graph.neighbors(0).contains(vertex)));
/// # Ok::<(), thinwire_graph::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    numbering: Numbering,
    drawer: Drawer,
    ranges: Vec<InEdges>,
}

impl Sampler {
    /// Creates a sampler of a graph.
    ///
    /// # Errors
    /// If the numbers of weights and edges differ, or a vertex has 2^32 or more in-neighbours.
    pub fn new(graph: &Adjacency, sampling: Sampling) -> Result<Sampler, Error> {
        if let Some(weights) = sampling.weights() {
            Weights::check_length(weights.len(), graph.edges())?;
        }
        if let Some(vertex) = (0..graph.vertices()).find(|v| graph.degree(*v) > u32::MAX as usize) {
            let (degree, most) = (graph.degree(vertex), u32::MAX);
            let context =
                format!("vertex {vertex} has {degree} in-neighbours, expected at most {most}");
            return Err(Error::length(context));
        }
        let numbering = Numbering::new(graph.vertices());
        Ok(Sampler { sampling, numbering, drawer: Drawer::default(), ranges: Vec::new() })
    }

    /// Expands seeds of the graph for which the sampler was created, and replaces `sample` by the result.
    ///
    /// # Errors
    /// If a seed is not a vertex or occurs twice, or a hop has 2^32 or more edges.
    ///
    /// # Panics
    /// If the graph has another number of vertices.
    pub fn sample(
        &mut self,
        graph: &Adjacency,
        seeds: &[u32],
        key: Key,
        sample: &mut Sample,
    ) -> Result<(), Error> {
        sample.clear(self.sampling.fan_outs.len());
        self.plant(graph, seeds, sample)?;
        let mut stream = Stream::new(key);
        let mut first = 0;
        for (hop, block) in sample.blocks.iter_mut().enumerate() {
            let fan_out = self.sampling.fan_outs[hop];
            let end = sample.vertices.len();
            block.destinations = first as u32..end as u32;
            self.expand(graph, fan_out, &mut stream, &mut sample.vertices, block)?;
            block.sources = sample.vertices.len() as u32;
            if self.sampling.frontier == Frontier::New {
                first = end;
            }
        }
        Ok(())
    }

    /// Adds the seeds of a batch to an empty sample.
    fn plant(
        &mut self,
        graph: &Adjacency,
        seeds: &[u32],
        sample: &mut Sample,
    ) -> Result<(), Error> {
        let numbering = &mut self.numbering;
        assert_eq!(graph.vertices(), numbering.vertices(), "vertices of the sampler's graph");
        numbering.clear();
        for (place, seed) in seeds.iter().enumerate() {
            if *seed >= numbering.vertices() {
                let name = format!("seed {place}");
                return Err(Error::vertex(&name, u64::from(*seed), numbering.vertices()));
            }
            if let Some(before) = numbering.get(*seed) {
                return Err(Error::value(format!(
                    "seeds {before} and {place} are both vertex {seed}, expected each vertex once"
                )));
            }
            numbering.number(&mut [*seed], &mut sample.vertices);
        }
        sample.seeds = seeds.len() as u32;
        Ok(())
    }

    /// Draws in-neighbours of the block's destinations.
    fn expand(
        &mut self,
        graph: &Adjacency,
        fan_out: FanOut,
        stream: &mut Stream,
        vertices: &mut Vec<u32>,
        block: &mut Block,
    ) -> Result<(), Error> {
        // Once per hop, since the arrays of a mapped file are found anew each time.
        let (offsets, all_neighbors) = (graph.offsets(), graph.all_neighbors());
        let (mut at, end) = (block.destinations.start as usize, block.destinations.end as usize);
        while at < end {
            let piece = at..end.min(at + PIECE);
            at = piece.end;
            self.ranges.clear();
            self.ranges.extend(vertices[piece].iter().map(|vertex| {
                let vertex = *vertex as usize;
                let start = offsets[vertex];
                InEdges { start, degree: (offsets[vertex + 1] - start) as u32 }
            }));
            let first = block.edges.len();
            self.draw(fan_out, stream, block);
            check_edges(block.edges.len())?;
            let neighbors = block.edges[first..].iter().map(|edge| all_neighbors[*edge as usize]);
            block.neighbors.extend(neighbors);
            self.numbering.number(&mut block.neighbors[first..], vertices);
        }
        Ok(())
    }

    fn draw(&mut self, fan_out: FanOut, stream: &mut Stream, block: &mut Block) {
        for range in &self.ranges {
            if range.degree > 0 {
                let draw = &self.sampling.draw;
                self.drawer.draw(draw, fan_out, *range, stream, &mut block.edges);
            }
            // Checked once per piece.
            block.offsets.push(block.edges.len() as u32);
        }
    }
}

/// Checks that the edges of a block can be counted with 32 bits.
fn check_edges(edges: usize) -> Result<(), Error> {
    if u32::try_from(edges).is_ok() {
        return Ok(());
    }
    Err(Error::length(format!(
        "a hop has {edges} edges, expected at most {}; take smaller batches or fan-outs",
        u32::MAX
    )))
}
