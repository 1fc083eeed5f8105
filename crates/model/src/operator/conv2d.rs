//! A convolution of images: `x[b,c,h,w] weight[o,c,i,j] -> y[b,o,y,x]`, or with groups
//! `x[b,g·c,h,w] weight[g·o,c,i,j] -> y[b,g·o,y,x]`.
//!
//! Batch and channels may be cut, or the groups if there are any. Rows and columns may not, since a window
//! needs its neighbours.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{dims, inputs, quotient};
use super::slide::{Slide, each, slides};
use crate::{Axes, Declaration, Error, Operand};

/// A convolution; inputs x and weight. In a file, one number may apply to all directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    /// Distance between neighbouring windows in pixels, vertically and horizontally.
    #[serde(deserialize_with = "each")]
    pub stride: [usize; 2],
    /// Zeros added to an image at the top, on the left, at the bottom and on the right.
    #[serde(deserialize_with = "each")]
    pub padding: [usize; 4],
    /// Distance between neighbouring pixels of a window.
    #[serde(deserialize_with = "each", default = "near")]
    pub dilation: [usize; 2],
    /// Number of groups of channels that are convolved separately.
    #[serde(default = "single")]
    pub groups: usize,
}

fn near() -> [usize; 2] {
    [1, 1]
}

fn single() -> usize {
    1
}

/// The gradient of the images; inputs dy and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2dInput {
    /// The convolution.
    pub forward: Conv2d,
    /// Height and width of an image.
    pub image: [usize; 2],
}

/// The gradient of the weight; inputs x and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv2dWeight {
    /// The convolution.
    pub forward: Conv2d,
    /// Height and width of a window.
    pub kernel: [usize; 2],
}

/// The sizes of a convolution: batch, input and output channels, image, window, and number of windows.
struct Sizes {
    batch: usize,
    channels: [usize; 2],
    image: [usize; 2],
    kernel: [usize; 2],
}

impl Conv2d {
    /// Returns a convolution that is the same in all directions.
    pub fn square(stride: usize, padding: usize) -> Conv2d {
        Conv2d { stride: [stride; 2], padding: [padding; 4], dilation: near(), groups: single() }
    }

    fn slides(&self) -> [Slide; 2] {
        slides(self.stride, self.dilation, self.padding)
    }

    /// Returns the axes, and the operands x, weight and y.
    fn operands(&self, sizes: &Sizes) -> Result<(Axes, [Operand; 3], f64), Error> {
        let Sizes { batch, channels, image, kernel } = *sizes;
        let [down, across] = self.slides();
        let (rows, columns) =
            (down.windows(image[0], kernel[0])?, across.windows(image[1], kernel[1])?);
        let mut axes = Axes::default();
        let b = axes.even('b', batch);
        let [of_x, of_weight, out] = match self.groups {
            1 => {
                let (c, o) = (axes.even('c', channels[0]), axes.even('o', channels[1]));
                [(c, 1), (c, 1), (o, 1)]
            }
            groups => {
                let [c, o] =
                    [quotient("x", channels[0], groups)?, quotient("y", channels[1], groups)?];
                let (g, inner) = (axes.even('g', groups), axes.never('c', c));
                [(g, c), (inner, 1), (g, o)]
            }
        }
        .map(|(dim, width)| dim.wide(width));
        let (y, x) = (axes.never('y', rows), axes.never('x', columns));
        let (i, j) = (axes.never('i', kernel[0]), axes.never('j', kernel[1]));
        let flops = 2.0 * axes.points() * out.width as f64;
        let (h, w) = (axes.never('h', image[0]), axes.never('w', image[1]));
        let operands = [
            Operand::new("x", [b, of_x, h, w]),
            Operand::new("weight", [out, of_weight, i, j]),
            Operand::new("y", [b, out, y, x]),
        ];
        Ok((axes, operands, flops))
    }
}

impl Rule for Conv2d {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, weight] = inputs(shapes)?;
        let ([batch, c, h, w], [o, _, i, j]) = (dims("x", x)?, dims("weight", weight)?);
        let sizes = Sizes { batch, channels: [c, o], image: [h, w], kernel: [i, j] };
        let (axes, [x, weight, y], flops) = self.operands(&sizes)?;
        Ok(axes.declare([x, weight], [y], flops))
    }
}

impl Rule for Conv2dInput {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [dy, weight] = inputs(shapes)?;
        let ([batch, ..], [o, c, i, j]) = (dims::<4>("dy", dy)?, dims("weight", weight)?);
        let c = c.saturating_mul(self.forward.groups);
        let sizes = Sizes { batch, channels: [c, o], image: self.image, kernel: [i, j] };
        let (axes, [x, weight, y], flops) = self.forward.operands(&sizes)?;
        let (dx, dy) = (Operand { name: "dx", ..x }, Operand { name: "dy", ..y });
        Ok(axes.declare([dy, weight], [dx], flops))
    }
}

impl Rule for Conv2dWeight {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, dy] = inputs(shapes)?;
        let ([batch, c, h, w], [_, o, ..]) = (dims("x", x)?, dims::<4>("dy", dy)?);
        let sizes = Sizes { batch, channels: [c, o], image: [h, w], kernel: self.kernel };
        let (axes, [x, weight, y], flops) = self.forward.operands(&sizes)?;
        let (dweight, dy) = (Operand { name: "dweight", ..weight }, Operand { name: "dy", ..y });
        Ok(axes.declare([x, dy], [dweight], flops))
    }
}
