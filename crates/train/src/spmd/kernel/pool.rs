//! Pooling: the largest value or the mean of every window.

use rayon::prelude::*;
use thinwire_model::{Pool, PoolKind};

use crate::spmd::value::Value;

/// Height and width of images, and the number of windows in each.
struct Plane {
    image: [usize; 2],
    result: [usize; 2],
}

impl Plane {
    /// Returns the pixels of a window with their factors.
    fn window(&self, pool: &Pool, image: &[f32], at: usize) -> Vec<(usize, f32)> {
        let window = [at / self.result[1], at % self.result[1]];
        let inside = |dim: usize, offset: usize| {
            let place = (window[dim] * pool.stride[dim] + offset).checked_sub(pool.padding[dim]);
            place.filter(|place| *place < self.image[dim])
        };
        let [height, width] = pool.size;
        let count = height * width;
        let pixel = |offset: usize| {
            let (y, x) = (inside(0, offset / width)?, inside(1, offset % width)?);
            Some(y * self.image[1] + x)
        };
        let pixels = (0..count).filter_map(pixel);
        match pool.kind {
            PoolKind::Mean => pixels.map(|pixel| (pixel, 1.0 / count as f32)).collect(),
            PoolKind::Max => {
                let larger = |a: usize, b: usize| if image[b] > image[a] { b } else { a };
                pixels.reduce(larger).map(|pixel| (pixel, 1.0)).into_iter().collect()
            }
        }
    }

    fn pixels(&self) -> [usize; 2] {
        [self.image, self.result].map(|[rows, columns]| (rows * columns).max(1))
    }
}

/// Pools the windows of x, to this shape.
pub fn forward(pool: &Pool, x: &Value, shape: &[usize]) -> Value {
    let plane = Plane { image: [x.shape()[2], x.shape()[3]], result: [shape[2], shape[3]] };
    let [pixels, windows] = plane.pixels();
    let images = x.floats();
    let mut y = vec![0.0; shape.iter().product()];
    y.par_chunks_mut(windows).zip(images.par_chunks(pixels)).for_each(|(y, image)| {
        for (at, value) in y.iter_mut().enumerate() {
            let window = plane.window(pool, image, at).into_iter();
            *value = window.map(|(pixel, factor)| image[pixel] * factor).sum();
        }
    });
    Value::new(shape, y)
}

/// Returns the gradient of x, from x and dy.
pub fn backward(pool: &Pool, inputs: &[&Value]) -> Value {
    let (x, dy) = (inputs[0].shape(), inputs[1].shape());
    let plane = Plane { image: [x[2], x[3]], result: [dy[2], dy[3]] };
    let [pixels, windows] = plane.pixels();
    let (images, dy) = (inputs[0].floats(), inputs[1].floats());
    let mut dx = vec![0.0; images.len()];
    let sources = images.par_chunks(pixels).zip(dy.par_chunks(windows));
    dx.par_chunks_mut(pixels).zip(sources).for_each(|(dx, (image, dy))| {
        for (at, dy) in dy.iter().enumerate() {
            let window = plane.window(pool, image, at).into_iter();
            window.for_each(|(pixel, factor)| dx[pixel] += factor * dy);
        }
    });
    Value::new(x, dx)
}
