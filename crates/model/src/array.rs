//! Arrays of f64, in which the reference implementations of operators compute.

use crate::Part;

/// Numbers in row-major order. Indices are stored as whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    /// Returns an array of these values.
    ///
    /// # Panics
    /// If the number of values differs from the number of elements of the shape.
    pub fn new(shape: impl Into<Vec<usize>>, values: Vec<f64>) -> Array {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), values.len(), "values for shape {shape:?}");
        Array { shape, values }
    }

    /// Returns an array that holds one number everywhere.
    pub fn full(shape: impl Into<Vec<usize>>, value: f64) -> Array {
        let shape = shape.into();
        let length = shape.iter().product();
        Array { shape, values: vec![value; length] }
    }

    /// Returns an array whose value at every index is the function of the index.
    pub fn from_fn(shape: impl Into<Vec<usize>>, mut value: impl FnMut(&[usize]) -> f64) -> Array {
        let shape = shape.into();
        let length: usize = shape.iter().product();
        let mut index = vec![0; shape.len()];
        let mut values = Vec::with_capacity(length);
        for _ in 0..length {
            values.push(value(&index));
            advance(&mut index, &shape);
        }
        Array { shape, values }
    }

    /// Returns the lengths of its dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns all values.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns all values, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Returns the value at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        self.values[self.place(index)]
    }

    /// Adds to the value at an index.
    pub fn add(&mut self, index: &[usize], value: f64) {
        let place = self.place(index);
        self.values[place] += value;
    }

    /// Sets the value at an index.
    pub fn set(&mut self, index: &[usize], value: f64) {
        let place = self.place(index);
        self.values[place] = value;
    }

    /// Returns an array of `function` applied to every value.
    pub fn map(&self, function: impl Fn(f64) -> f64) -> Array {
        let values = self.values.iter().map(|value| function(*value)).collect();
        Array { shape: self.shape.clone(), values }
    }

    /// Returns the elements in a part of every dimension.
    pub fn slice(&self, parts: &[Part]) -> Array {
        let shape: Vec<usize> = parts.iter().map(|part| part.length).collect();
        Array::from_fn(shape, |index| {
            let from: Vec<usize> =
                index.iter().zip(parts).map(|(i, part)| i + part.start).collect();
            self.at(&from)
        })
    }

    /// Calls a function with every index.
    pub fn each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
        let mut index = vec![0; shape.len()];
        for _ in 0..shape.iter().product() {
            visit(&index);
            advance(&mut index, shape);
        }
    }

    fn place(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.shape.len());
        index.iter().zip(&self.shape).fold(0, |place, (i, length)| {
            debug_assert!(i < length, "index {index:?} of shape {:?}", self.shape);
            place * length + i
        })
    }
}

/// Advances an index in row-major order.
fn advance(index: &mut [usize], shape: &[usize]) {
    for (i, length) in index.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < *length {
            return;
        }
        *i = 0;
    }
}
