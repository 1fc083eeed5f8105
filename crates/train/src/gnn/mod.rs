//! Graph neural networks on sampled mini-batches: GraphSAGE, GCN and GAT.
//!
//! A [`Network`] has one layer per hop of a [`Sample`](thinwire_graph::Sample), with explicit forward and
//! backward passes. It has no plan, since the sizes of a batch differ from step to step. A [`Trainer`] is one
//! rank of a training, with batches from crate `loader` and gradients averaged by crate `sync`. Laws: a
//! gradient is the derivative of the loss; if all in-neighbours are taken and nothing is dropped, a step of
//! several ranks equals a step of one rank with all their seeds.

mod attention;
mod checkpoint;
mod convolution;
mod hop;
mod layer;
mod loss;
mod matrix;
mod network;
mod served;
mod table;
mod task;
#[cfg(test)]
mod tests;
mod trainer;

use std::fmt;

pub use loss::Figures;
pub use matrix::Matrix;
pub use network::{Dropout, Input, Network, Shape};
pub use served::ServedRows;
pub use table::NAME as ROWS;
pub use task::{Rows, Task};
pub use trainer::{Settings, Totals, Trainer};

/// Kind of layer of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// GraphSAGE with the mean of in-neighbours.
    Sage,
    /// Graph convolutional network.
    Gcn,
    /// Graph attention network.
    Gat,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 3] = [Model::Sage, Model::Gcn, Model::Gat];
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Sage => "sage",
            Model::Gcn => "gcn",
            Model::Gat => "gat",
        })
    }
}

/// Gradients that a backward pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Only the gradients of the weights.
    Weights,
    /// Also the gradients of the inputs, which for a network are the features.
    All,
}
