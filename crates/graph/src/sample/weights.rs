//! Weights of edges, as probabilities of being drawn.

use crate::array::Array;
use crate::error::Error;

/// Weights of all edges, in the order of the graph's neighbours. Weights from a [`Store`](crate::Store) are
/// in its mapped file.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Array<f32>);

impl Weights {
    /// Creates weights. An edge of weight 0 is never drawn.
    ///
    /// # Errors
    /// If a weight is negative or not finite.
    pub fn new(weights: Vec<f32>) -> Result<Weights, Error> {
        Weights::from_array(Array::Owned(weights))
    }

    /// Creates weights, which may be in memory or in a mapped file.
    ///
    /// # Errors
    /// As [`Weights::new`].
    pub(crate) fn from_array(weights: Array<f32>) -> Result<Weights, Error> {
        match weights.iter().position(|weight| !is_weight(*weight)) {
            None => Ok(Weights(weights)),
            Some(edge) => {
                Err(Error::weight(&format!("weight of edge {edge} is"), &weights[edge].to_string()))
            }
        }
    }

    /// Returns the weights.
    pub fn values(&self) -> &[f32] {
        &self.0
    }

    /// Checks that there is one weight per edge.
    pub(crate) fn check_length(found: usize, edges: u64) -> Result<(), Error> {
        match found as u64 == edges {
            true => Ok(()),
            false => Err(Error::length(format!("{found} weights, expected one per edge, {edges}"))),
        }
    }
}

/// Returns whether an edge can have this weight.
pub(crate) fn is_weight(weight: f32) -> bool {
    weight.is_finite() && weight >= 0.0
}
