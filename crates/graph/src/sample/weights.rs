//! Weights of edges, as probabilities of being drawn.

use crate::error::Error;

/// Weights of all edges, in the order of the graph's neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Vec<f32>);

impl Weights {
    /// Creates weights. An edge of weight 0 is never drawn.
    ///
    /// # Errors
    /// If a weight is negative or not finite.
    pub fn new(weights: Vec<f32>) -> Result<Weights, Error> {
        match weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
            None => Ok(Weights(weights)),
            Some(edge) => Err(Error::value(format!(
                "weight of edge {edge} is {}, expected a finite number of at least 0",
                weights[edge]
            ))),
        }
    }

    /// Returns the weights.
    pub fn values(&self) -> &[f32] {
        &self.0
    }
}
