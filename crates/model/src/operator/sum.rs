//! The sum over some dimensions: `x[b,s,n] -> y[n]`, or `y[1,1,n]`.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::{Axes, Declaration, Error, Operand};

/// Effect of a sum on a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summed {
    /// The dimension is kept.
    No,
    /// The output has a dimension of length 1.
    ToOne,
    /// The output does not have the dimension.
    Away,
}

/// A sum; input x.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// For each dimension of x, the effect on it; dimensions beyond the list are kept.
    pub dims: Vec<Summed>,
}

impl Sum {
    /// Returns the sum over neighbouring dimensions, which are removed.
    pub fn over(dims: Range<usize>) -> Sum {
        let summed = |dim: usize| if dims.contains(&dim) { Summed::Away } else { Summed::No };
        Sum { dims: (0..dims.end).map(summed).collect() }
    }

    /// Returns the sum that reduces a broadcast tensor to its original shape.
    pub fn back_to(whole: &[usize], shape: &[usize]) -> Sum {
        let missing = whole.len() - shape.len();
        let kept = |length: &usize| if *length == 1 { Summed::ToOne } else { Summed::No };
        let away = std::iter::repeat_n(Summed::Away, missing);
        Sum { dims: away.chain(shape.iter().map(kept)).collect() }
    }

    /// Returns the effect on a dimension.
    pub(super) fn of(&self, dim: usize) -> Summed {
        self.dims.get(dim).copied().unwrap_or(Summed::No)
    }

    /// Declares the whole operand and the summed one, in this order.
    pub(super) fn operands(
        &self,
        axes: &mut Axes,
        whole: &[usize],
        names: [&'static str; 2],
    ) -> Result<[Operand; 2], Error> {
        let dims = axes.all(whole)?;
        let mut summed = Vec::new();
        for (at, (dim, name)) in dims.iter().zip('0'..).enumerate() {
            match self.of(at) {
                Summed::No => summed.push(*dim),
                Summed::ToOne => summed.push(axes.never(name, 1)),
                Summed::Away => {}
            }
        }
        Ok([Operand::new(names[0], dims), Operand::new(names[1], summed)])
    }
}

impl Rule for Sum {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let mut axes = Axes::default();
        let [x, y] = self.operands(&mut axes, x, ["x", "y"])?;
        let flops = axes.points();
        Ok(axes.declare([x], [y], flops).linear())
    }
}
