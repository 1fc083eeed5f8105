//! Hops: the edges of a block, with a factor for every message.
//!
//! A hop maps the values of its sources to values of its destinations, which are the first sources. This
//! map is a matrix, so its backward pass uses the transposed matrix: `<sum(x), y> = <x, turned(y)>`.

use rayon::prelude::*;
use thinwire_graph::{Adjacency, Block, Sample};

use super::Model;
use super::matrix::{Matrix, add};

/// Number of values in all messages from which on several threads sum them.
const PARALLEL_MIN: usize = 1 << 15;

/// Edges of one hop.
#[derive(Debug)]
pub struct Hop<'a> {
    block: &'a Block,
    /// Factor of every edge.
    edges: Vec<f32>,
    /// Factor of every destination's own value.
    own: Vec<f32>,
}

impl<'a> Hop<'a> {
    /// Creates the hop of a layer from the blocks of a sample: the first layer has the last block.
    ///
    /// # Panics
    /// If the sample's vertices are not all expanded in every hop
    /// ([`Frontier::All`](thinwire_graph::Frontier::All)), or its messages have factors already.
    pub fn new(model: Model, sample: &'a Sample, layer: usize, graph: &Adjacency) -> Hop<'a> {
        let block = &sample.blocks[sample.blocks.len() - 1 - layer];
        assert!(block.destinations.start == 0, "destinations are the first sources");
        let hop = Hop { block, edges: Vec::new(), own: Vec::new() };
        match model {
            Model::Sage => hop.averaged(),
            Model::Gcn => hop.normalized(&sample.vertices, graph),
            Model::Gat => hop,
        }
    }

    /// Sets the factors for the mean over the drawn in-neighbours.
    fn averaged(mut self) -> Hop<'a> {
        for column in 0..self.destinations() {
            let drawn = self.block.neighbors_of(column).len();
            self.edges.extend(std::iter::repeat_n(1.0 / drawn as f32, drawn));
        }
        self.own = vec![0.0; self.destinations()];
        self
    }

    /// Sets the factors for a row of `D^-1/2 (A + I) D^-1/2`, where `D` is the in-degrees plus one. The
    /// drawn in-neighbours are weighted so that the expected sum equals the sum over all in-neighbours.
    fn normalized(mut self, vertices: &[u32], graph: &Adjacency) -> Hop<'a> {
        let root = |number: usize| (graph.degree(vertices[number]) as f32 + 1.0).sqrt();
        for (column, vertex) in vertices[..self.destinations()].iter().enumerate() {
            let sources = self.block.neighbors_of(column);
            let degree = graph.degree(*vertex) as f32;
            let scale = degree / sources.len().max(1) as f32 / root(column);
            self.edges.extend(sources.iter().map(|source| scale / root(*source as usize)));
            self.own.push(1.0 / (degree + 1.0));
        }
        self
    }

    /// Returns the number of destinations.
    pub fn destinations(&self) -> usize {
        self.block.destinations.end as usize
    }

    /// Returns the number of sources.
    pub fn sources(&self) -> usize {
        self.block.sources as usize
    }

    /// Returns the sources of a destination's edges.
    pub(super) fn sources_of(&self, destination: usize) -> &[u32] {
        self.block.neighbors_of(destination)
    }

    /// Returns the index of a destination's first edge.
    pub(super) fn first_edge(&self, destination: usize) -> usize {
        self.block.offsets[destination] as usize
    }

    /// Sums the messages of every destination.
    pub fn sum(&self, x: &Matrix) -> Matrix {
        let mut y = Matrix::zeros(self.destinations(), x.columns());
        let fill = |(destination, row): (usize, &mut [f32])| {
            add(row, x.row(destination), self.own[destination]);
            for (source, factor) in self.messages(destination) {
                add(row, x.row(source), factor);
            }
        };
        match self.edges.len() * x.columns() < PARALLEL_MIN {
            true => y.values_mut().chunks_mut(x.columns()).enumerate().for_each(fill),
            false => y.values_mut().par_chunks_mut(x.columns()).enumerate().for_each(fill),
        }
        y
    }

    /// Returns the gradient of the sources, given the gradient of the destinations.
    pub fn turned(&self, y: &Matrix) -> Matrix {
        let mut x = Matrix::zeros(self.sources(), y.columns());
        for destination in 0..self.destinations() {
            let row = y.row(destination);
            add(x.row_mut(destination), row, self.own[destination]);
            for (source, factor) in self.messages(destination) {
                add(x.row_mut(source), row, factor);
            }
        }
        x
    }

    fn messages(&self, destination: usize) -> impl Iterator<Item = (usize, f32)> {
        let sources = self.sources_of(destination).iter().map(|source| *source as usize);
        sources.zip(self.edges[self.first_edge(destination)..].iter().copied())
    }
}
