//! Arithmetic element by element, with broadcast: `x[..] y[..] -> z[..]`.
//!
//! The second operand may lack leading dimensions, or be 1 long where the first is longer.

use serde::{Deserialize, Serialize};

use super::{Rule, Scale, Sum, inputs};
use crate::array::Array;
use crate::axis::{Axes, Declaration, Operand};
use crate::backward::Gradients;
use crate::error::{Error, Kind};
use crate::graph::TensorId;
use crate::region::Region;

/// One of the four operations; inputs x and y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// x + y.
    Add,
    /// x − y.
    Subtract,
    /// x · y.
    Multiply,
    /// x / y.
    Divide,
}

impl Arithmetic {
    fn of(self, x: f64, y: f64) -> f64 {
        match self {
            Arithmetic::Add => x + y,
            Arithmetic::Subtract => x - y,
            Arithmetic::Multiply => x * y,
            Arithmetic::Divide => x / y,
        }
    }

    /// dz · ∂z/∂x.
    fn first(self, node: &mut Gradients<'_>, dz: TensorId) -> Result<TensorId, Error> {
        let y = node.input(1);
        match self {
            Arithmetic::Add | Arithmetic::Subtract => Ok(dz),
            Arithmetic::Multiply | Arithmetic::Divide => Ok(node.apply(self, &[dz, y])?[0]),
        }
    }

    /// dz · ∂z/∂y, before it is summed over what was broadcast.
    fn second(self, node: &mut Gradients<'_>, dz: TensorId) -> Result<TensorId, Error> {
        let (x, y) = (node.input(0), node.input(1));
        match self {
            Arithmetic::Add => Ok(dz),
            Arithmetic::Subtract => Ok(node.apply(Scale(-1.0), &[dz])?[0]),
            Arithmetic::Multiply => Ok(node.apply(self, &[dz, x])?[0]),
            Arithmetic::Divide => {
                let product = node.apply(Arithmetic::Multiply, &[dz, x])?[0];
                let once = node.apply(self, &[product, y])?[0];
                let twice = node.apply(self, &[once, y])?[0];
                Ok(node.apply(Scale(-1.0), &[twice])?[0])
            }
        }
    }
}

impl Rule for Arithmetic {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, y] = inputs(shapes)?;
        let missing = x.len().checked_sub(y.len()).ok_or_else(|| {
            let message =
                format!("y has {} dimensions, expected at most {} of x", y.len(), x.len());
            Error::new(Kind::Operands, message)
        })?;
        let mut axes = Axes::default();
        let whole = axes.all(x)?;
        let flops = axes.points();
        let mut dims = whole[missing..].to_vec();
        for (dim, (length, name)) in dims.iter_mut().zip(y.iter().zip('0'..)) {
            if *length == 1 && axes.length(*dim) > 1 {
                *dim = axes.never(name, 1);
            }
        }
        let operands = [Operand::new("x", &whole[..]), Operand::new("y", dims)];
        let mut declaration = axes.declare(operands, [Operand::new("z", whole)], flops);
        declaration.linear = matches!(self, Arithmetic::Add | Arithmetic::Subtract);
        Ok(declaration)
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, y] = [inputs[0], inputs[1]];
        let missing = x.shape().len() - y.shape().len();
        let z = Array::from_fn(region.output_shape(0), |at| {
            let places = at[missing..].iter().zip(y.shape());
            let other: Vec<usize> = places.map(|(i, length)| *i.min(&(length - 1))).collect();
            self.of(x.at(at), y.at(&other))
        });
        vec![z]
    }

    fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        let dz = node.given(0)?;
        if node.wants(0) {
            let dx = self.first(node, dz)?;
            node.give(0, dx);
        }
        if node.wants(1) {
            let whole = self.second(node, dz)?;
            let (x, y) = (node.input_shape(0), node.input_shape(1));
            let dy = match x == y {
                true => whole,
                false => node.apply(Sum::back_to(&x, &y), &[whole])?[0],
            };
            node.give(1, dy);
        }
        Ok(())
    }
}
