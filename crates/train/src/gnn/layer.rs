//! Layers: they compute a hop's destinations from its sources, by weights.

use super::attention::{self, Attended};
use super::hop::Hop;
use super::matrix::Matrix;
use super::{Model, Wanted, convolution};
use crate::Parameter;

/// Layer of a network.
#[derive(Clone, Debug)]
pub struct Layer {
    pub model: Model,
    pub inputs: usize,
    pub outputs: usize,
    /// Number of attention heads, among which the outputs are divided.
    pub heads: usize,
}

/// Values of a forward pass that the backward pass uses.
#[derive(Debug)]
pub enum Kept {
    Sums(Matrix),
    Attended(Attended),
}

/// Forward pass of a layer.
#[derive(Debug)]
pub struct Forward<'a> {
    pub hop: Hop<'a>,
    /// Values of the sources.
    pub x: Matrix,
    pub kept: Kept,
}

impl Layer {
    /// Returns the weights of the layer with this number.
    pub fn parameters(&self, number: usize) -> Vec<Parameter> {
        let (inputs, outputs, heads) = (self.inputs, self.outputs, self.heads);
        let (weight, bias) = (("weight", vec![inputs, outputs]), ("bias", vec![outputs]));
        let vector = |name| (name, vec![heads, outputs / heads]);
        let named = match self.model {
            Model::Sage => vec![weight, bias, ("own", vec![inputs, outputs])],
            Model::Gcn => vec![weight, bias],
            Model::Gat => vec![weight, vector("source"), vector("destination"), bias],
        };
        let parameter = |(name, shape)| Parameter { name: format!("layer.{number}.{name}"), shape };
        named.into_iter().map(parameter).collect()
    }

    /// Computes the values of the destinations.
    pub fn forward(&self, weights: &[Vec<f32>], hop: &Hop<'_>, x: &Matrix) -> (Matrix, Kept) {
        match self.model {
            Model::Sage | Model::Gcn => {
                let (y, sums) = convolution::forward(weights, hop, x);
                (y, Kept::Sums(sums))
            }
            Model::Gat => {
                let (y, attended) = attention::forward(weights, self.heads, hop, x);
                (y, Kept::Attended(attended))
            }
        }
    }
}

impl Forward<'_> {
    /// Returns the gradients of the weights and, on request, of `x`, given the gradient of the outputs.
    pub fn backward(
        &self,
        weights: &[Vec<f32>],
        dy: &Matrix,
        wanted: Wanted,
    ) -> (Vec<Vec<f32>>, Option<Matrix>) {
        let Forward { hop, x, kept } = self;
        match kept {
            Kept::Sums(sums) => convolution::backward(weights, hop, x, sums, dy, wanted),
            Kept::Attended(kept) => attention::backward(weights, hop, x, kept, dy, wanted),
        }
    }
}
