//! Matrices of f32, row by row.

use crate::spmd::kernel::product;
use crate::spmd::strided::Strided;

/// Matrix whose rows are vertices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// Creates a matrix from its rows, one after the other.
    ///
    /// # Panics
    /// If the values are not a whole number of rows.
    pub fn new(columns: usize, values: Vec<f32>) -> Matrix {
        assert!(values.len().is_multiple_of(columns.max(1)), "rows of {columns} values");
        Matrix { columns, values }
    }

    /// Creates a matrix of zeros.
    pub(super) fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { columns, values: vec![0.0; rows * columns] }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the values, to be changed in place.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Returns the values, row by row, without a copy.
    pub(super) fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Returns a row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// Returns a row, to be changed in place.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    /// Returns a view of the first rows.
    pub(super) fn head(&self, rows: usize) -> Strided<'_> {
        Strided::new(&self.values[..rows * self.columns], &[rows, self.columns])
    }

    pub(super) fn view(&self) -> Strided<'_> {
        self.head(self.rows())
    }

    /// Adds a vector to every row.
    pub(super) fn add_row(&mut self, row: &[f32]) {
        self.values.chunks_exact_mut(row.len()).for_each(|values| add(values, row, 1.0));
    }

    /// Adds another matrix to the first rows.
    pub(super) fn add_head(&mut self, other: &Matrix) {
        add(&mut self.values[..other.values.len()], &other.values, 1.0);
    }

    /// Returns the sum of the rows.
    pub(super) fn column_sums(&self) -> Vec<f32> {
        let mut sums = vec![0.0; self.columns];
        self.values.chunks_exact(self.columns).for_each(|row| add(&mut sums, row, 1.0));
        sums
    }
}

/// Returns values as a weight of this many rows.
pub(super) fn weight(values: &[f32], rows: usize) -> Strided<'_> {
    Strided::new(values, &[rows, values.len() / rows])
}

/// Multiplies two matrices.
pub(super) fn times(left: &Strided<'_>, right: &Strided<'_>) -> Matrix {
    Matrix::new(right.sizes()[1], product(left, right))
}

/// Adds `factor` times other values.
#[inline]
pub(super) fn add(values: &mut [f32], others: &[f32], factor: f32) {
    values.iter_mut().zip(others).for_each(|(value, other)| *value += factor * other);
}

/// Returns the sum of products.
#[inline]
pub(super) fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}
