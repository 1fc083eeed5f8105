//! A linear layer: `x[..,k] w[k,n] -> y[..,n]`, and perhaps a bias `[n]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, split_last};
use crate::{Array, Axes, Declaration, Error, Operand, Region};

/// A product with a weight; inputs x, weight, and bias if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Whether there is a bias.
    pub bias: bool,
}

impl Rule for Linear {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let (x, weight) = match self.bias {
            true => inputs::<3>(shapes).map(|[x, weight, _]| (x, weight))?,
            false => inputs::<2>(shapes).map(|[x, weight]| (x, weight))?,
        };
        let (_, leading) = split_last("x", x)?;
        let [k, n] = dims("weight", weight)?;
        let mut axes = Axes::default();
        let leading = axes.leading(leading)?;
        let (k, n) = (axes.even('k', k), axes.even('n', n));
        let flops = 2.0 * axes.points();
        let x = Operand::new("x", [&leading[..], &[k]].concat());
        let mut operands = vec![x, Operand::new("weight", [k, n])];
        operands.extend(self.bias.then(|| Operand::new("bias", [n]).added()));
        let y = Operand::new("y", [&leading[..], &[n]].concat());
        Ok(axes.declare(operands, [y], flops))
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, weight) = (inputs[0], inputs[1]);
        let y = Array::from_fn(region.output_shape(0), |at| {
            let (n, row) = at.split_last().expect("y has a dimension n");
            let start = inputs.get(2).map_or(0.0, |bias| bias.at(&[*n]));
            let term = |k| x.at(&[row, &[k]].concat()) * weight.at(&[k, *n]);
            start + (0..weight.shape()[0]).map(term).sum::<f64>()
        });
        vec![y]
    }
}
