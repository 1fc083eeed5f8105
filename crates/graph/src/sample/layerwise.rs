//! Layer-wise sampling: each hop draws a number of vertices for all of its destinations together.
//!
//! Zou et al., "Layer-Dependent Importance Sampling for Training Deep and Large Graph Convolutional Networks"
//! (NeurIPS 2019, section 3.2), with the mean over in-neighbours as the matrix. A batch grows by a sum over
//! hops where fan-outs make it grow by a product.

use thinwire_wire::random::Key;

use super::block::{Block, Sample};
use super::numbering::Numbering;
use super::sampler::{check_edges, plant};
use super::stream::Stream;
use crate::adjacency::Adjacency;
use crate::error::Error;

/// Probabilities of layer-wise sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Importance {
    /// By the hop's destinations, as in LADIES: a vertex counts with the squares of its shares in their
    /// means.
    #[default]
    Layer,
    /// By the whole graph, as in FastGCN (Chen et al., ICLR 2018): with the squares of its shares in the means
    /// of all vertices. Unlike there, only in-neighbours of the hop's destinations are drawn.
    Graph,
}

/// Sampler of layers, for one mini-batch after the other. It has 16 bytes for every vertex of the graph, or
/// 24 with [`Importance::Graph`].
///
/// A hop draws in-neighbours of its destinations without replacement, and has all edges between both. Edges
/// have [`weights`](Block::weights), which sum to 1 for a destination that has edges: shares in the mean,
/// divided by the importance of the source.
#[derive(Clone, Debug)]
pub struct LayerSampler {
    sizes: Vec<u32>,
    numbering: Numbering,
    /// Importance in the whole graph; empty if that of the layer is used.
    everywhere: Vec<f64>,
    /// Importance of the drawn vertices of a hop; 0 for all others, and between hops.
    importance: Vec<f64>,
    candidates: Vec<u32>,
    keys: Vec<(f64, u32)>,
}

impl LayerSampler {
    /// Creates a sampler of a graph that draws at most this many vertices in each hop, that of the seeds
    /// first.
    pub fn new(graph: &Adjacency, sizes: &[u32], importance: Importance) -> LayerSampler {
        let vertices = graph.vertices();
        let mut everywhere = Vec::new();
        if importance == Importance::Graph {
            everywhere.resize(vertices as usize, 0.0);
            (0..vertices).for_each(|vertex| add_shares(graph, vertex, &mut everywhere, |_| {}));
        }
        LayerSampler {
            sizes: sizes.to_vec(),
            numbering: Numbering::new(vertices),
            everywhere,
            importance: vec![0.0; vertices as usize],
            candidates: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Expands seeds of the graph that the sampler was created for, and replaces `sample` by the result.
    ///
    /// # Errors
    /// If a seed is not a vertex or occurs twice, or a hop has 2^32 edges and more.
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
        sample.clear(self.sizes.len());
        plant((graph, &mut self.numbering), seeds, sample)?;
        let mut stream = Stream::new(key);
        for (hop, block) in sample.blocks.iter_mut().enumerate() {
            block.destinations = 0..sample.vertices.len() as u32;
            self.collect(graph, &sample.vertices);
            self.draw(self.sizes[hop], &mut stream);
            let connected = self.connect(graph, &sample.vertices, block);
            self.keys.iter().for_each(|(_, vertex)| self.importance[*vertex as usize] = 0.0);
            connected?;
            self.numbering.number(&mut block.neighbors, &mut sample.vertices);
            block.sources = sample.vertices.len() as u32;
        }
        Ok(())
    }

    /// Collects the in-neighbours of the destinations and their importance.
    fn collect(&mut self, graph: &Adjacency, destinations: &[u32]) {
        self.candidates.clear();
        for vertex in destinations {
            let found = |neighbor| self.candidates.push(neighbor);
            add_shares(graph, *vertex, &mut self.importance, found);
        }
        if !self.everywhere.is_empty() {
            for vertex in &self.candidates {
                self.importance[*vertex as usize] = self.everywhere[*vertex as usize];
            }
        }
    }

    /// Leaves the drawn vertices in `keys`: those with the smallest of exponential variables.
    fn draw(&mut self, size: u32, stream: &mut Stream) {
        let importance = &mut self.importance;
        let keyed = self
            .candidates
            .iter()
            .map(|vertex| (-stream.unit().ln() / importance[*vertex as usize], *vertex));
        self.keys.clear();
        self.keys.extend(keyed);
        let size = size as usize;
        if size < self.keys.len() {
            self.keys.select_nth_unstable_by(size, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            self.keys[size..].iter().for_each(|(_, vertex)| importance[*vertex as usize] = 0.0);
            self.keys.truncate(size);
        }
    }

    /// Fills the block with the edges from drawn vertices.
    fn connect(
        &self,
        graph: &Adjacency,
        destinations: &[u32],
        block: &mut Block,
    ) -> Result<(), Error> {
        for vertex in destinations {
            let first = block.edges.len();
            for edge in graph.range(*vertex) {
                let neighbor = graph.neighbor(edge as u64);
                let importance = self.importance[neighbor as usize];
                if importance > 0.0 {
                    block.edges.push(edge as u64);
                    block.neighbors.push(neighbor);
                    block.weights.push((1.0 / importance) as f32);
                }
            }
            check_edges(block.edges.len())?;
            let sum: f32 = block.weights[first..].iter().sum();
            block.weights[first..].iter_mut().for_each(|weight| *weight /= sum);
            block.offsets.push(block.edges.len() as u32);
        }
        Ok(())
    }
}

/// Adds the square of the share that each in-neighbour has in the mean of a vertex. `found` is told those
/// whose sum was 0.
fn add_shares(graph: &Adjacency, vertex: u32, sums: &mut [f64], mut found: impl FnMut(u32)) {
    let share = 1.0 / (graph.degree(vertex) as f64).powi(2);
    for neighbor in graph.neighbors(vertex) {
        let sum = &mut sums[*neighbor as usize];
        if *sum == 0.0 {
            found(*neighbor);
        }
        *sum += share;
    }
}
