//! Dropout: `x[..] -> y[..]`.
//!
//! Srivastava et al., "Dropout". Whether an element is kept depends only on its position in the whole tensor,
//! and not on the rank that computes it. So every sharding drops the same elements, and the gradient is the
//! same operator.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{elementwise, inputs};
use crate::{Declaration, Error, Kind};

/// Sets some elements to zero and scales up the others, so that the mean is unchanged; input x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// The fraction that is dropped.
    pub rate: f64,
    /// A number that is different for every dropout of a model.
    pub stream: u32,
}

impl Rule for Dropout {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        if !(0.0..1.0).contains(&self.rate) {
            let message = format!("rate is {}, expected 0 or more and less than 1", self.rate);
            return Err(Error::new(Kind::Operands, message));
        }
        Ok(elementwise(x, &["x"], "y", 1.0)?.linear())
    }
}
