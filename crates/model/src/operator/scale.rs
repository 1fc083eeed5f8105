//! Every element multiplied by a number: `x[..] -> y[..]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{SINGLE, check_number, elementwise, inputs};
use crate::{Declaration, Error};

/// A product with this number; input x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale(pub f64);

impl Rule for Scale {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        check_number("factor", self.0, SINGLE)?;
        Ok(elementwise(x, &["x"], "y", 1.0)?.linear())
    }
}
