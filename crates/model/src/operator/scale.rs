//! Every element times a number: `x[..] -> y[..]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{SINGLE, check_number, elementwise, inputs};
use crate::{Array, Declaration, Error, Region};

/// A product with this number; input x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale(pub f64);

impl Rule for Scale {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        check_number("factor", self.0, SINGLE)?;
        Ok(elementwise(x, &["x"], "y", 1.0)?.linear())
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].map(|value| value * self.0)]
    }
}
