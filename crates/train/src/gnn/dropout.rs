//! Dropout of inputs.

use thinwire_wire::random::{Key, unit};

use super::matrix::Matrix;

/// Dropout of a training step; the same for the same key.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Share of values that become 0; the others are divided by what is left.
    pub share: f32,
    /// Key of the random numbers; each layer has a stream of its own.
    pub key: Key,
}

impl Dropout {
    /// Drops values of the inputs of a layer.
    pub fn apply(&self, layer: usize, x: &mut Matrix) {
        if self.share == 0.0 {
            return;
        }
        let key = Key { tensor: self.key.tensor ^ (layer as u32) << 24, ..self.key };
        for (block, values) in (0..).zip(x.values_mut().chunks_mut(4)) {
            for (value, word) in values.iter_mut().zip(key.words(block)) {
                *value *= if unit(word) < self.share { 0.0 } else { self.scale() };
            }
        }
    }

    /// Returns the factor of values that are kept.
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.share)
    }
}
