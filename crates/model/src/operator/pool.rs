//! The largest or the mean of every window: `x[b,c,h,w] -> y[b,c,y,x]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs};
use super::slide::{Slide, each, slides};
use crate::{Axes, Declaration, Error, Operand};

/// Function of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The largest pixel.
    Max,
    /// The sum of the window's pixels, divided by its size including padding.
    Mean,
}

/// A pool; input x. In a file, one number may apply to all directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Function of a window.
    pub kind: PoolKind,
    /// Height and width of a window.
    #[serde(deserialize_with = "each")]
    pub size: [usize; 2],
    /// Distance between neighbouring windows in pixels, vertically and horizontally.
    #[serde(deserialize_with = "each")]
    pub stride: [usize; 2],
    /// Pixels of padding added to an image at the top, on the left, at the bottom and on the right.
    #[serde(deserialize_with = "each")]
    pub padding: [usize; 4],
}

/// The gradient of x; inputs x and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PoolBackward(pub Pool);

impl Pool {
    /// Returns a pool with windows that are the same in all directions.
    pub fn square(kind: PoolKind, size: usize, stride: usize, padding: usize) -> Pool {
        Pool { kind, size: [size; 2], stride: [stride; 2], padding: [padding; 4] }
    }

    fn slides(&self) -> [Slide; 2] {
        slides(self.stride, [1, 1], self.padding)
    }

    fn operands(&self, x: &[usize]) -> Result<(Axes, Operand, Operand, f64), Error> {
        let [b, c, h, w] = dims("x", x)?;
        let ([down, across], [height, width]) = (self.slides(), self.size);
        let (rows, columns) = (down.windows(h, height)?, across.windows(w, width)?);
        let mut axes = Axes::default();
        let (b, c) = (axes.even('b', b), axes.even('c', c));
        let (y, x) = (axes.never('y', rows), axes.never('x', columns));
        let flops = axes.points() * (height * width) as f64;
        let (h, w) = (axes.never('h', h), axes.never('w', w));
        Ok((axes, Operand::new("x", [b, c, h, w]), Operand::new("y", [b, c, y, x]), flops))
    }
}

impl Rule for Pool {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let (axes, x, y, flops) = self.operands(x)?;
        Ok(axes.declare([x], [y], flops))
    }
}

impl Rule for PoolBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _] = inputs(shapes)?;
        let (axes, x, y, flops) = self.0.operands(x)?;
        let dx = Operand { name: "dx", ..x.clone() };
        Ok(axes.declare([x, Operand { name: "dy", ..y }], [dx], flops))
    }
}
