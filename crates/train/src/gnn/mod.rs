//! Graph neural networks on sampled mini-batches: GraphSAGE, GCN and GAT.
//!
//! A [`Network`] has a layer per hop of a [`Sample`](thinwire_graph::Sample), with forward and backward passes
//! written out; it has no plan, since the sizes of a batch differ from step to step. A [`Trainer`] is one
//! rank of a training: batches of crate `loader`, gradients averaged by crate `sync`. Laws: a gradient is the
//! derivative of the loss; a step of several ranks is that of one rank with all their seeds, where all
//! in-neighbours are taken and nothing is dropped.

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

/// Sort of a network's layers.
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
    /// Those of the weights.
    Weights,
    /// Those of the inputs as well: of a network, of the features.
    All,
}
