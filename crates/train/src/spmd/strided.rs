//! Strided views of a tensor's values: dimensions are permuted, narrowed and broadcast without a copy.

use rayon::prelude::*;

/// Number of elements from which on a separate task pays.
const CHUNK: usize = 1 << 14;

/// View of values, given by a length and a stride for each dimension, in elements.
///
/// Invariant: every index within `sizes` lies within `values`.
#[derive(Clone, Debug)]
pub struct Strided<'a> {
    values: &'a [f32],
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl<'a> Strided<'a> {
    /// Returns a view of row-major values.
    ///
    /// # Panics
    /// If the number of values differs from the number of elements of the shape.
    pub fn new(values: &'a [f32], shape: &[usize]) -> Strided<'a> {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "values for shape {shape:?}");
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        Strided { values, sizes: shape.to_vec(), strides }
    }

    /// Returns the values from the view's first element on.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// Returns the lengths of the dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns, for every dimension, the distance between neighbouring indices, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the view with its dimensions in another order.
    pub fn permuted(&self, order: &[usize]) -> Strided<'a> {
        let ordered = |of: &[usize]| order.iter().map(|dim| of[*dim]).collect();
        Strided { sizes: ordered(&self.sizes), strides: ordered(&self.strides), ..*self }
    }

    /// Returns the view with its last two dimensions exchanged: the transposed matrices.
    pub fn transposed(mut self) -> Strided<'a> {
        let last = self.sizes.len() - 1;
        self.sizes.swap(last - 1, last);
        self.strides.swap(last - 1, last);
        self
    }

    /// Returns a view of a range of one dimension.
    ///
    /// # Panics
    /// If the range is not within the dimension.
    pub fn narrowed(mut self, dim: usize, start: usize, length: usize) -> Strided<'a> {
        assert!(start + length <= self.sizes[dim], "{start} + {length} of {}", self.sizes[dim]);
        // An empty view may begin behind the last value.
        let first = (start * self.strides[dim]).min(self.values.len());
        self.values = &self.values[first..];
        self.sizes[dim] = length;
        self
    }

    /// Returns a view of these sizes, in which dimensions of length one repeat. Missing dimensions are
    /// added in front.
    ///
    /// # Panics
    /// If a dimension has neither length one nor the requested length.
    pub fn broadcast(mut self, sizes: &[usize]) -> Strided<'a> {
        let missing = sizes.len() - self.sizes.len();
        self.sizes.splice(..0, std::iter::repeat_n(1, missing));
        self.strides.splice(..0, std::iter::repeat_n(0, missing));
        for ((length, stride), size) in self.sizes.iter_mut().zip(&mut self.strides).zip(sizes) {
            assert!(*length == *size || *length == 1, "{length} elements as {size}");
            if length != size {
                (*length, *stride) = (*size, 0);
            }
        }
        self
    }

    /// Returns the offset of the element at an index that counts all but the last `inner` dimensions row by
    /// row.
    pub fn offset(&self, mut index: usize, inner: usize) -> usize {
        let outer = self.sizes.len() - inner;
        let mut offset = 0;
        for (size, stride) in self.sizes[..outer].iter().zip(&self.strides).rev() {
            offset += index % size * stride;
            index /= size;
        }
        offset
    }

    /// Returns the values in row-major order.
    pub fn contiguous(&self) -> Vec<f32> {
        let merged = self.merged();
        let (width, stride) = match (merged.sizes.last(), merged.strides.last()) {
            (Some(width), Some(stride)) => (*width, *stride),
            _ => return self.values[..1].to_vec(),
        };
        let mut made = vec![0.0; merged.sizes.iter().product()];
        let rows = made.par_chunks_mut(width.max(1)).with_min_len((CHUNK / width.max(1)).max(1));
        rows.enumerate().for_each(|(row, made)| {
            let from = &merged.values[merged.offset(row, 1)..];
            match stride {
                1 => made.copy_from_slice(&from[..width]),
                0 => made.fill(from[0]),
                _ => made.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, x)| *to = *x),
            }
        });
        made
    }

    /// Returns the view after joining neighbouring dimensions that are contiguous in memory.
    fn merged(&self) -> Strided<'a> {
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (size, stride) in self.sizes.iter().copied().zip(self.strides.iter().copied()) {
            match merged.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => merged.push((size, stride)),
            }
        }
        let (sizes, strides) = merged.into_iter().unzip();
        Strided { values: self.values, sizes, strides }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of a view, index by index.
    fn one_by_one(view: &Strided<'_>) -> Vec<f32> {
        let count = view.sizes().iter().product();
        (0..count).map(|index| view.values()[view.offset(index, 0)]).collect()
    }

    #[test]
    fn contiguous_values_are_those_of_every_index() {
        let values: Vec<f32> = (0..120).map(|x| x as f32).collect();
        let view = Strided::new(&values, &[2, 3, 4, 5]);
        for order in [[0, 1, 2, 3], [0, 2, 1, 3], [3, 1, 0, 2], [2, 3, 0, 1]] {
            let turned = view.permuted(&order);
            assert_eq!(turned.contiguous(), one_by_one(&turned), "{order:?}");
            let part = turned.clone().narrowed(1, 1, 1);
            assert_eq!(part.contiguous(), one_by_one(&part), "{order:?}");
        }
        let row = Strided::new(&values[..5], &[5]).broadcast(&[3, 5]);
        assert_eq!(row.contiguous(), values[..5].repeat(3));
        let column = Strided::new(&values[..3], &[3, 1]).broadcast(&[3, 2]);
        assert_eq!(column.contiguous(), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(Strided::new(&values[..1], &[]).contiguous(), [0.0]);
        assert!(Strided::new(&[], &[0, 4]).contiguous().is_empty());
    }

    #[test]
    #[should_panic(expected = "values for shape")]
    fn another_number_of_values_is_a_mistake() {
        Strided::new(&[1.0; 5], &[2, 3]);
    }
}
