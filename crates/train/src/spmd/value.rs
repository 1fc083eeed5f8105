//! Tensor of a rank: a shape, and f32 values in row-major order.
//!
//! Values are shared until they are changed. Indices are stored as f32 values too. They are below 2^24,
//! so f32 represents them exactly.

use std::sync::Arc;

use thinwire_model::Array;

use super::strided::Strided;

/// Local tensor. A clone shares the values.
#[derive(Clone, Debug)]
pub struct Value {
    shape: Vec<usize>,
    values: Arc<Vec<f32>>,
}

impl Value {
    /// Returns a tensor of these values, in row-major order.
    ///
    /// # Panics
    /// If the number of values differs from the number of elements of the shape.
    pub fn new(shape: &[usize], values: Vec<f32>) -> Value {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "values for shape {shape:?}");
        Value { shape: shape.to_vec(), values: Arc::new(values) }
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.values.len()
    }

    /// Returns the product of all dimensions but the last, and the last.
    pub fn rows(&self) -> [usize; 2] {
        let last = self.shape.last().copied().unwrap_or(1);
        [self.elements() / last.max(1), last]
    }

    /// Returns a view under a shape with the same number of elements.
    pub fn view(&self, shape: &[usize]) -> Strided<'_> {
        Strided::new(&self.values, shape)
    }

    /// Returns a tensor of the same elements under another shape; it shares the values.
    ///
    /// # Panics
    /// If the shape has more or fewer elements.
    pub fn reshaped(&self, shape: &[usize]) -> Value {
        assert_eq!(shape.iter().product::<usize>(), self.elements(), "elements of {shape:?}");
        Value { shape: shape.to_vec(), values: self.values.clone() }
    }

    /// Returns the values in row-major order.
    pub fn floats(&self) -> &[f32] {
        &self.values
    }

    /// Returns the values in row-major order, copied only if they are shared.
    pub fn into_floats(self) -> Vec<f32> {
        Arc::unwrap_or_clone(self.values)
    }

    /// Returns the tensor after changing its values, in place unless they are shared.
    pub fn edited(mut self, edit: impl FnOnce(&mut [f32])) -> Value {
        edit(Arc::make_mut(&mut self.values).as_mut_slice());
        self
    }

    /// Returns an array of the reference implementation, in f64.
    pub fn array(&self) -> Array {
        Array::new(&self.shape[..], self.values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>())
    }

    /// Returns a tensor of a reference array, rounded to f32.
    pub fn from_array(array: &Array) -> Value {
        Value::new(array.shape(), array.values().iter().map(|value| *value as f32).collect())
    }
}
