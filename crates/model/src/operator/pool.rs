//! The largest or the mean of every window: `x[b,c,h,w] -> y[b,c,y,x]`.

use serde::{Deserialize, Serialize};

use super::conv2d::{pixel, windows};
use super::{Rule, dims, inputs};
use crate::array::Array;
use crate::axis::{Axes, Declaration, Operand};
use crate::backward::Gradients;
use crate::error::Error;
use crate::region::Region;

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Its largest pixel.
    Max,
    /// The sum of its pixels over its size, padding included.
    Mean,
}

/// Windows; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// What a window becomes.
    pub kind: PoolKind,
    /// Height and width of a window.
    pub size: usize,
    /// How far windows are apart.
    pub stride: usize,
    /// How many pixels there are around an image.
    pub padding: usize,
}

/// The gradient of x; inputs x and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PoolBackward(pub Pool);

impl Pool {
    fn operands(&self, x: &[usize]) -> Result<(Axes, Operand, Operand, f64), Error> {
        let [b, c, h, w] = dims("x", x)?;
        let count = |length| windows(length, self.size, self.stride, self.padding);
        let (rows, columns) = (count(h)?, count(w)?);
        let mut axes = Axes::default();
        let (b, c) = (axes.even('b', b), axes.even('c', c));
        let (y, x) = (axes.never('y', rows), axes.never('x', columns));
        let flops = axes.points() * (self.size * self.size) as f64;
        let (h, w) = (axes.never('h', h), axes.never('w', w));
        Ok((axes, Operand::new("x", [b, c, h, w]), Operand::new("y", [b, c, y, x]), flops))
    }

    /// How much each pixel counts in the window at an index of y.
    fn window(&self, x: &Array, at: &[usize]) -> Vec<([usize; 4], f64)> {
        let place = |offset: usize| {
            let pixel = |dim: usize, at, offset| {
                pixel(at, offset, self.stride, self.padding, x.shape()[dim])
            };
            let (h, w) =
                (pixel(2, at[2], offset / self.size)?, pixel(3, at[3], offset % self.size)?);
            Some([at[0], at[1], h, w])
        };
        let count = self.size * self.size;
        let places = (0..count).filter_map(place);
        match self.kind {
            PoolKind::Mean => places.map(|place| (place, 1.0 / count as f64)).collect(),
            PoolKind::Max => {
                let larger = |a: [usize; 4], b: [usize; 4]| if x.at(&b) > x.at(&a) { b } else { a };
                places.reduce(larger).map(|place| (place, 1.0)).into_iter().collect()
            }
        }
    }
}

impl Rule for Pool {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let (axes, x, y, flops) = self.operands(x)?;
        Ok(axes.declare([x], [y], flops))
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let x = inputs[0];
        let mean = |at: &[usize]| {
            self.window(x, at).into_iter().map(|(place, factor)| x.at(&place) * factor).sum()
        };
        vec![Array::from_fn(region.output_shape(0), mean)]
    }

    fn gradients(&self, node: &mut Gradients<'_>) -> Result<(), Error> {
        let operands = [node.input(0), node.given(0)?];
        let dx = node.apply(PoolBackward(*self), &operands)?;
        node.give(0, dx[0]);
        Ok(())
    }
}

impl Rule for PoolBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _] = inputs(shapes)?;
        let (axes, x, y, flops) = self.0.operands(x)?;
        let dx = Operand { name: "dx", ..x.clone() };
        Ok(axes.declare([x, Operand { name: "dy", ..y }], [dx], flops))
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let [x, dy] = [inputs[0], inputs[1]];
        let mut dx = Array::full(x.shape(), 0.0);
        Array::each_index(dy.shape(), |at| {
            for (place, factor) in self.0.window(x, at) {
                dx.add(&place, factor * dy.at(at));
            }
        });
        vec![dx]
    }
}
