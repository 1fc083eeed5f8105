//! Convolutions as matrix products over windows.
//!
//! Windows of an image are the columns of a matrix `[c·size·size, rows·columns]`; a convolution is
//! the product of the weight with it, group by group.

use rayon::prelude::*;
use thinwire_model::{Conv2d, Conv2dInput, Conv2dWeight};

use super::multiply::product;
use super::rows;
use crate::spmd::value::Value;

/// The sizes of windows in an image.
#[derive(Clone, Copy)]
struct Windows {
    convolution: Conv2d,
    channels: usize,
    image: [usize; 2],
    kernel: [usize; 2],
    result: [usize; 2],
}

impl Windows {
    /// Returns the numbers of rows and columns of the matrix.
    fn sizes(&self) -> [usize; 2] {
        [self.channels * self.kernel[0] * self.kernel[1], self.result[0] * self.result[1]]
    }

    /// Calls a function with every position in the matrix and the corresponding position in the image.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        let Windows { convolution, channels, image, kernel, result } = *self;
        let Conv2d { stride, padding, dilation, .. } = convolution;
        let mut at = 0;
        for row in 0..channels * kernel[0] * kernel[1] {
            let (channel, i, j) =
                (row / (kernel[0] * kernel[1]), row / kernel[1] % kernel[0], row % kernel[1]);
            for y in 0..result[0] {
                for x in 0..result[1] {
                    let from = [y * stride[0] + i * dilation[0], x * stride[1] + j * dilation[1]];
                    let inside = |dim: usize| {
                        from[dim].checked_sub(padding[dim]).filter(|place| *place < image[dim])
                    };
                    if let (Some(y), Some(x)) = (inside(0), inside(1)) {
                        visit(at, (channel * image[0] + y) * image[1] + x);
                    }
                    at += 1;
                }
            }
        }
    }

    /// Returns the windows of all images: `[b, c·size·size, rows·columns]`.
    fn of(&self, x: &Value) -> Value {
        let [rows, columns] = self.sizes();
        let batch = x.shape()[0];
        let (images, length) = (x.floats(), self.channels * self.image[0] * self.image[1]);
        let mut values = vec![0.0; batch * rows * columns];
        let matrices = values.par_chunks_mut((rows * columns).max(1));
        matrices.zip(images.par_chunks(length.max(1))).for_each(|(matrix, image)| {
            self.each(|at, place| matrix[at] = image[place]);
        });
        Value::new(&[batch, rows, columns], values)
    }

    /// Adds the values of windows to the images from which they come.
    fn back(&self, matrices: &Value) -> Value {
        let batch = matrices.shape()[0];
        let length = self.channels * self.image[0] * self.image[1];
        let [rows, columns] = self.sizes();
        let values = matrices.floats();
        let mut images = vec![0.0; batch * length];
        let all = images.par_chunks_mut(length.max(1));
        all.zip(values.par_chunks((rows * columns).max(1))).for_each(|(image, matrix)| {
            self.each(|at, place| image[place] += matrix[at]);
        });
        let shape = [batch, self.channels, self.image[0], self.image[1]];
        Value::new(&shape, images)
    }
}

fn last_two(shape: &[usize]) -> [usize; 2] {
    [shape[2], shape[3]]
}

/// Convolves images `[b, g·c, ..]` with a weight `[g·o, c, ..]` to `[b, g·o, ..]`, of this shape.
pub fn conv2d(convolution: Conv2d, inputs: &[&Value], shape: &[usize]) -> Value {
    let (x, weight) = (inputs[0].shape(), inputs[1].shape());
    let (image, kernel, result) = (last_two(x), last_two(weight), last_two(shape));
    let windows = Windows { convolution, channels: x[1], image, kernel, result };
    let ([k, columns], groups) = (windows.sizes(), x[1] / weight[1]);
    let (k, o) = (k / groups, weight[0] / groups);
    let weight_rows = inputs[1].view(&[1, groups, o, k]);
    let matrices = windows.of(inputs[0]);
    Value::new(shape, product(&weight_rows, &matrices.view(&[x[0], groups, k, columns])))
}

/// Returns the gradient of the images, of this shape, from dy and the weight.
pub fn conv2d_input(conv: &Conv2dInput, inputs: &[&Value], shape: &[usize]) -> Value {
    let (dy, weight) = (inputs[0].shape(), inputs[1].shape());
    let (convolution, image) = (conv.forward, conv.image);
    let (kernel, result) = (last_two(weight), last_two(dy));
    let windows = Windows { convolution, channels: shape[1], image, kernel, result };
    let ([k, columns], groups) = (windows.sizes(), shape[1] / weight[1]);
    let o = weight[0] / groups;
    let weight_columns = inputs[1].view(&[1, groups, o, k / groups]).transposed();
    let matrices = product(&weight_columns, &inputs[0].view(&[dy[0], groups, o, columns]));
    windows.back(&Value::new(&[dy[0], k, columns], matrices))
}

/// Returns the gradient of the weight, of this shape, from the images and dy.
pub fn conv2d_weight(conv: &Conv2dWeight, inputs: &[&Value], shape: &[usize]) -> Value {
    let (x, dy) = (inputs[0].shape(), inputs[1].shape());
    let (image, kernel, result) = (last_two(x), conv.kernel, last_two(dy));
    let windows = Windows { convolution: conv.forward, channels: x[1], image, kernel, result };
    let ([k, columns], groups) = (windows.sizes(), x[1] / shape[1]);
    let dy_rows = inputs[1].view(&[dy[0], groups, dy[1] / groups, columns]);
    let matrices = windows.of(inputs[0]);
    let matrices = matrices.view(&[x[0], groups, k / groups, columns]).transposed();
    Value::new(shape, rows::sum_rows(&product(&dy_rows, &matrices), shape.iter().product()))
}
