//! Every element times a number: `x[..] -> y[..]`.

use serde::{Deserialize, Serialize};

use super::{Rule, SINGLE, check_number, inputs};
use crate::array::Array;
use crate::axis::{Axes, Declaration, Operand};
use crate::backward::Gradients;
use crate::error::Error;
use crate::region::Region;

/// A product with this number; input x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale(pub f64);

impl Rule for Scale {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        check_number("factor", self.0, SINGLE)?;
        let mut axes = Axes::default();
        let dims = axes.all(x)?;
        let flops = axes.points();
        let outputs = [Operand::new("y", &dims[..])];
        Ok(axes.declare([Operand::new("x", dims)], outputs, flops).linear())
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].map(|value| value * self.0)]
    }

    fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        let dy = node.given(0)?;
        let dx = node.apply(*self, &[dy])?;
        node.give(0, dx[0]);
        Ok(())
    }
}
