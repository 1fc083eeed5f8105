//! Batched matrix product of strided views, with the kernels of crate `gemm` for f32.
//!
//! Law: the result does not depend on the number of threads, because one thread sums each element.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;
use rayon::prelude::*;

use crate::spmd::strided::Strided;

/// Number of multiplications from which on one product uses several threads.
const PARALLEL_MIN: usize = 192 * 192 * 192;
/// Number of multiplications from which on the products of a batch are divided among threads.
const BATCH_PARALLEL_MIN: usize = 128 * 128 * 128;
/// Number of products in a batch that is enough to keep all threads busy.
const BATCH_MIN: usize = 4;

/// Returns the product of `[.., m, k]` and `[.., k, n]` as row-major `[.., m, n]`. Leading dimensions are
/// equal, or one and repeated.
///
/// # Panics
/// If sizes do not fit each other.
pub fn product(left: &Strided<'_>, right: &Strided<'_>) -> Vec<f32> {
    let (outer, [m, k]) = split(left.sizes());
    let (other, [found, n]) = split(right.sizes());
    assert_eq!(found, k, "summed lengths of {:?} and {:?}", left.sizes(), right.sizes());
    let batch: Vec<usize> = outer.iter().zip(other).map(|(a, b)| *a.max(b)).collect();
    let (left, right) = (expanded(left, &batch, [m, k]), expanded(right, &batch, [k, n]));

    let (count, each) = (batch.iter().product::<usize>(), m * k * n);
    let mut made = vec![0.0; count * m * n];
    if made.is_empty() || k == 0 {
        return made;
    }
    let all = made.chunks_exact_mut(m * n).enumerate();
    let one = |(at, made): (usize, &mut [f32]), parallelism| {
        let [left, right] = [&left, &right].map(|view| Matrix::of(view, at));
        multiply(made, left, right, parallelism);
    };
    let spread = count * each >= BATCH_PARALLEL_MIN && count > 1;
    if each >= PARALLEL_MIN && count < BATCH_MIN {
        all.for_each(|matrix| one(matrix, Parallelism::Rayon(0)));
    } else if spread {
        let all = made.par_chunks_exact_mut(m * n).enumerate();
        all.for_each(|matrix| one(matrix, Parallelism::None));
    } else {
        all.for_each(|matrix| one(matrix, Parallelism::None));
    }
    made
}

/// Returns the leading dimensions, and the last two.
fn split(sizes: &[usize]) -> (&[usize], [usize; 2]) {
    let (outer, last) = sizes.split_last_chunk().expect("a matrix has two dimensions");
    (outer, *last)
}

fn expanded<'a>(view: &Strided<'a>, batch: &[usize], matrix: [usize; 2]) -> Strided<'a> {
    view.clone().broadcast(&[batch, &matrix].concat())
}

/// Matrix of a view: sizes and strides of its rows and columns.
struct Matrix<'a> {
    values: &'a [f32],
    sizes: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    fn of(view: &Strided<'a>, at: usize) -> Matrix<'a> {
        let (_, sizes) = split(view.sizes());
        let (_, strides) = split(view.strides());
        Matrix { values: &view.values()[view.offset(at, 2)..], sizes, strides }
    }

    /// Returns the index after the last element.
    fn end(&self) -> usize {
        let last = self.sizes.iter().zip(&self.strides);
        last.map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
    }
}

/// Writes the product of `left` and `right`, without empty dimensions, to row-major `made`.
#[expect(unsafe_code, reason = "kernels of another crate take pointers")]
fn multiply(made: &mut [f32], left: Matrix<'_>, right: Matrix<'_>, parallelism: Parallelism) {
    let ([m, k], [_, n]) = (left.sizes, right.sizes);
    assert_eq!(made.len(), m * n, "elements of the product");
    assert!(left.end() <= left.values.len() && right.end() <= right.values.len());
    let [left_rows, left_columns] = left.strides.map(|stride| stride as isize);
    let [right_rows, right_columns] = right.strides.map(|stride| stride as isize);
    // Kernels write columns: the transposed product, of the transposed factors, is what lies in rows.
    // SAFETY: by the assertions above every index that sizes and strides reach is within the slices;
    // `made` is borrowed alone, and is not read.
    unsafe {
        get_gemm_fn()(
            n,
            m,
            k,
            made.as_mut_ptr(),
            n as isize,
            1,
            false,
            right.values.as_ptr(),
            right_rows,
            right_columns,
            left.values.as_ptr(),
            left_rows,
            left_columns,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(length: usize) -> Vec<f32> {
        (0..length).map(|at| (at * 7 % 13) as f32 - 6.0).collect()
    }

    /// Returns the product summed in f64; with whole numbers, every order of summation gives the same result.
    fn plain(left: &[f32], right: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
        let element = |at: usize| {
            let (row, column) = (at / n, at % n);
            (0..k).map(|i| f64::from(left[row * k + i] * right[i * n + column])).sum::<f64>() as f32
        };
        (0..m * n).map(element).collect()
    }

    #[test]
    fn strides_give_what_copies_give() {
        for [m, k, n] in [[1, 1, 1], [3, 5, 2], [17, 33, 9], [1, 64, 31], [200, 193, 200]] {
            let (left, right) = (ramp(m * k), ramp(k * n));
            let expected = plain(&left, &right, [m, k, n]);
            let [rows, columns] = [Strided::new(&left, &[m, k]), Strided::new(&right, &[k, n])];
            assert_eq!(product(&rows, &columns), expected, "{m} {k} {n}");
            let turned = [rows.clone().transposed(), columns.clone().transposed()];
            let copies = turned.map(|view| view.contiguous());
            let left = Strided::new(&copies[0], &[k, m]).transposed();
            let right = Strided::new(&copies[1], &[n, k]).transposed();
            assert_eq!(product(&left, &right), expected, "{m} {k} {n} transposed");
        }
    }

    #[test]
    fn batches_are_repeated_where_they_have_one() {
        let [b, m, k, n] = [5, 40, 70, 160];
        let (left, right) = (ramp(m * k), ramp(b * k * n));
        let found = product(&Strided::new(&left, &[1, m, k]), &Strided::new(&right, &[b, k, n]));
        let parts = right.chunks(k * n).flat_map(|right| plain(&left, right, [m, k, n]));
        assert_eq!(found, parts.collect::<Vec<_>>());
    }

    #[test]
    fn empty_sums_are_zero() {
        let (left, right) = (Strided::new(&[], &[2, 0]), Strided::new(&[], &[0, 3]));
        assert_eq!(product(&left, &right), [0.0; 6]);
        assert!(product(&Strided::new(&[], &[0, 2]), &Strided::new(&[1.0; 6], &[2, 3])).is_empty());
    }

    #[test]
    #[should_panic(expected = "summed lengths")]
    fn lengths_that_differ_are_a_mistake() {
        product(&Strided::new(&[1.0; 6], &[2, 3]), &Strided::new(&[1.0; 4], &[2, 2]));
    }
}
