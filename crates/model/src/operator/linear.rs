//! A linear layer: `x[..,k] w[k,n] -> y[..,n]`, with a bias `[n]` if there is one; a transposed weight is
//! `w[n,k]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, split_last};
use crate::{Axes, Declaration, Error, Operand};

/// A product with a weight; inputs x, weight, and bias if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the weight is `[n,k]`, as in PyTorch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turned: bool,
}

impl Linear {
    /// Returns a layer with a weight `[k,n]` and without a bias.
    pub const fn plain() -> Linear {
        Linear { bias: false, turned: false }
    }

    /// Returns a layer with a weight `[k,n]` and a bias.
    pub const fn biased() -> Linear {
        Linear { bias: true, turned: false }
    }
}

impl Rule for Linear {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let (x, weight) = match self.bias {
            true => inputs::<3>(shapes).map(|[x, weight, _]| (x, weight))?,
            false => inputs::<2>(shapes).map(|[x, weight]| (x, weight))?,
        };
        let (_, leading) = split_last("x", x)?;
        let [first, second] = dims("weight", weight)?;
        let (k, n) = if self.turned { (second, first) } else { (first, second) };
        let mut axes = Axes::default();
        let leading = axes.leading(leading)?;
        let (k, n) = (axes.even('k', k), axes.even('n', n));
        let flops = 2.0 * axes.points();
        let x = Operand::new("x", [&leading[..], &[k]].concat());
        let weight = if self.turned { [n, k] } else { [k, n] };
        let mut operands = vec![x, Operand::new("weight", weight)];
        operands.extend(self.bias.then(|| Operand::new("bias", [n]).added()));
        let y = Operand::new("y", [&leading[..], &[n]].concat());
        Ok(axes.declare(operands, [y], flops))
    }
}
