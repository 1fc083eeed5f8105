//! Orthonormal discrete cosine transform of rows of 64 elements and of their columns.
//!
//! Ahmed, Natarajan and Rao, "Discrete cosine transform" (1974): coefficient `u` of `n` numbers is
//! `√(2/n) Σ x(r) cos(π (2r + 1) u / 2n)`, the first one over `√2`. Both transforms are products with
//! a matrix, summed in the order of `r`, so that all machines get the same bits; for that reason the
//! cosines come from a series and not from the system.
//!
//! Laws: the inverse transform undoes the transform, and both keep the Euclidean length.

use std::f64::consts::PI;
use std::sync::OnceLock;

use crate::kernel::{Work, imp};

/// Elements of a row, and largest number of rows.
pub(crate) const ROW: usize = 64;

/// Matrices of the transform of some rows.
#[derive(Debug)]
pub(crate) struct Cosines {
    /// Matrix of columns: row `u` has the factors of coefficient `u`.
    columns: Vec<f32>,
    /// Matrix of rows of 64: row `u` has the factors of coefficient `u`.
    rows: Vec<f32>,
    /// Transpose of the matrix of rows.
    transposed: Vec<f32>,
}

/// Returns the transform of as many rows as `elements` need, at most 64.
pub(crate) fn cosines(elements: usize) -> &'static Cosines {
    static ALL: [OnceLock<Cosines>; ROW + 1] = [const { OnceLock::new() }; ROW + 1];
    let rows = elements.div_ceil(ROW);
    ALL[rows].get_or_init(|| {
        let row = matrix(ROW);
        let transposed = (0..ROW * ROW).map(|at| row[at % ROW * ROW + at / ROW]).collect();
        Cosines { columns: matrix(rows), rows: row, transposed }
    })
}

fn matrix(n: usize) -> Vec<f32> {
    let element = |u: usize, r: usize| {
        let weight = if u == 0 { 1.0 } else { 2.0 };
        (f64::sqrt(weight / n as f64) * cosine((2 * r + 1) * u % (4 * n), 2 * n)) as f32
    };
    (0..n * n).map(|at| element(at / n, at % n)).collect()
}

/// Returns the cosine of `π part / whole`, an angle below a full turn.
fn cosine(part: usize, whole: usize) -> f64 {
    let x = PI * part as f64 / whole as f64;
    let (mut term, mut sum) = (1.0, 1.0);
    for at in 1..32 {
        term *= -x * x / f64::from(2 * at * (2 * at - 1));
        sum += term;
    }
    sum
}

impl Cosines {
    /// Transforms values to coefficients, in place.
    pub(crate) fn forward(&self, values: &mut [f32]) {
        imp().run(Forward { cosines: self, values });
    }

    /// Transforms coefficients to values, in place.
    pub(crate) fn inverse(&self, values: &mut [f32]) {
        imp().run(Inverse { cosines: self, values });
    }
}

struct Forward<'a> {
    cosines: &'a Cosines,
    values: &'a mut [f32],
}

impl Work for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Forward { cosines, values } = self;
        let (n, mut between) = (values.len() / ROW, [[0.0; ROW]; ROW]);
        let rows = cosines.transposed.as_chunks::<ROW>().0;
        for (row, sums) in values.as_chunks::<ROW>().0.iter().zip(&mut between) {
            *sums = combine(rows.iter().zip(row));
        }
        for (u, sums) in values.as_chunks_mut::<ROW>().0.iter_mut().enumerate() {
            *sums = combine(between.iter().zip(&cosines.columns[u * n..][..n]));
        }
    }
}

struct Inverse<'a> {
    cosines: &'a Cosines,
    values: &'a mut [f32],
}

impl Work for Inverse<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Inverse { cosines, values } = self;
        let (n, mut between) = (values.len() / ROW, [[0.0; ROW]; ROW]);
        let rows = cosines.rows.as_chunks::<ROW>().0;
        for (row, sums) in values.as_chunks::<ROW>().0.iter().zip(&mut between) {
            // Most coefficients are zero: skipping them is worth the branch.
            *sums = combine(rows.iter().zip(row).filter(|(_, x)| **x != 0.0));
        }
        for (r, sums) in values.as_chunks_mut::<ROW>().0.iter_mut().enumerate() {
            let column = cosines.columns[r..].iter().step_by(n.max(1));
            *sums = combine(between.iter().take(n).zip(column));
        }
    }
}

/// Returns the sum of rows, each times a factor.
#[inline(always)]
fn combine<'a>(rows: impl Iterator<Item = (&'a [f32; ROW], &'a f32)>) -> [f32; ROW] {
    let mut sums = [0.0; ROW];
    for (row, factor) in rows {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * factor);
    }
    sums
}

#[cfg(test)]
mod tests {
    use thinwire_wire::random::Key;

    use super::*;

    fn squared(values: &[f32]) -> f64 {
        values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
    }

    #[test]
    fn the_inverse_undoes_the_transform_and_lengths_stay() {
        for rows in [1, 2, 3, 7, 63, 64] {
            let key = Key { seed: 1, step: 0, tensor: rows as u32 };
            let values: Vec<f32> = (0..rows as u64 * 64).map(|i| key.normal(i)).collect();
            let mut both = values.clone();
            cosines(values.len()).forward(&mut both);
            assert!((squared(&both) / squared(&values) - 1.0).abs() < 1e-5, "{rows} rows");
            cosines(values.len()).inverse(&mut both);
            let wrong = values.iter().zip(&both).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(wrong < 1e-5, "{rows} rows: {wrong}");
        }
    }

    #[test]
    fn a_constant_is_one_coefficient_and_so_is_a_cosine() {
        let mut values = vec![0.5; 64 * 64];
        cosines(values.len()).forward(&mut values);
        assert!((values[0] - 32.0).abs() < 1e-4 && squared(&values[1..]) < 1e-6);
        let wave = |at: usize| (PI * (2.0 * (at % 64) as f64 + 1.0) * 5.0 / 128.0).cos() as f32;
        let mut values: Vec<f32> = (0..64 * 64).map(wave).collect();
        cosines(values.len()).forward(&mut values);
        let own = f64::from(values[5]);
        assert!((own * own / squared(&values) - 1.0).abs() < 1e-5);
    }
}
