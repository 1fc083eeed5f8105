//! Convolutions and pools.

use thinwire_model::{
    Array, Conv2d, Conv2dInput, Conv2dWeight, Pool, PoolBackward, PoolKind, Region,
};

use super::Reference;

/// Returns the place of a window's pixel along one direction of an image; none in the padding.
fn pixel(padded: usize, before: usize, length: usize) -> Option<usize> {
    padded.checked_sub(before).filter(|pixel| *pixel < length)
}

/// Calls a function with the indices of x, weight and y of every product. The number of groups
/// follows from the shapes, which may be local.
fn each_product(
    conv: &Conv2d,
    [x, weight, y]: [&[usize]; 3],
    mut visit: impl FnMut([usize; 4], [usize; 4], [usize; 4]),
) {
    let Conv2d { stride, padding, dilation, .. } = *conv;
    let groups = (x[1] / weight[1].max(1)).max(1);
    let per_group = (weight[0] / groups).max(1);
    Array::each_index(&[y[0], y[1], y[2], y[3], weight[1], weight[2], weight[3]], |at| {
        let [b, o, row, column, c, i, j] = *at else { return };
        let h = pixel(row * stride[0] + i * dilation[0], padding[0], x[2]);
        let w = pixel(column * stride[1] + j * dilation[1], padding[1], x[3]);
        if let (Some(h), Some(w)) = (h, w) {
            let channel = o / per_group * weight[1] + c;
            visit([b, channel, h, w], [o, c, i, j], [b, o, row, column]);
        }
    });
}

impl Reference for Conv2d {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, weight] = [inputs[0], inputs[1]];
        let mut y = Array::full(region.output_shape(0), 0.0);
        let shape = y.shape().to_vec();
        each_product(self, [x.shape(), weight.shape(), &shape], |of_x, of_weight, of_y| {
            y.add(&of_y, x.at(&of_x) * weight.at(&of_weight));
        });
        vec![y]
    }
}

impl Reference for Conv2dInput {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [dy, weight] = [inputs[0], inputs[1]];
        let mut dx = Array::full(region.output_shape(0), 0.0);
        let shape = dx.shape().to_vec();
        each_product(
            &self.forward,
            [&shape, weight.shape(), dy.shape()],
            |of_x, of_weight, of_y| {
                dx.add(&of_x, dy.at(&of_y) * weight.at(&of_weight));
            },
        );
        vec![dx]
    }
}

impl Reference for Conv2dWeight {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, dy] = [inputs[0], inputs[1]];
        let mut dweight = Array::full(region.output_shape(0), 0.0);
        let shape = dweight.shape().to_vec();
        each_product(&self.forward, [x.shape(), &shape, dy.shape()], |of_x, of_weight, of_y| {
            dweight.add(&of_weight, x.at(&of_x) * dy.at(&of_y));
        });
        vec![dweight]
    }
}

/// Returns the weight of each pixel in the window at an index of y.
fn window(pool: &Pool, x: &Array, at: &[usize]) -> Vec<([usize; 4], f64)> {
    let Pool { kind, size: [height, width], stride, padding } = *pool;
    let place = |offset: usize| {
        let h = pixel(at[2] * stride[0] + offset / width, padding[0], x.shape()[2])?;
        let w = pixel(at[3] * stride[1] + offset % width, padding[1], x.shape()[3])?;
        Some([at[0], at[1], h, w])
    };
    let count = height * width;
    let places = (0..count).filter_map(place);
    match kind {
        PoolKind::Mean => places.map(|place| (place, 1.0 / count as f64)).collect(),
        PoolKind::Max => {
            let larger = |a: [usize; 4], b: [usize; 4]| if x.at(&b) > x.at(&a) { b } else { a };
            places.reduce(larger).map(|place| (place, 1.0)).into_iter().collect()
        }
    }
}

impl Reference for Pool {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let x = inputs[0];
        let mean = |at: &[usize]| {
            window(self, x, at).into_iter().map(|(place, factor)| x.at(&place) * factor).sum()
        };
        vec![Array::from_fn(region.output_shape(0), mean)]
    }
}

impl Reference for PoolBackward {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let [x, dy] = [inputs[0], inputs[1]];
        let mut dx = Array::full(x.shape(), 0.0);
        Array::each_index(dy.shape(), |at| {
            for (place, factor) in window(&self.0, x, at) {
                dx.add(&place, factor * dy.at(at));
            }
        });
        vec![dx]
    }
}
