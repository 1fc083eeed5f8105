//! Reference loops, whose bits all other kernels must give.

use super::bits::SIGN;
use super::format::Format;
use crate::{Input, Write};

/// Lanes in which a scalar product is summed.
pub(super) const SUMS: usize = 32;

/// An element that may be among the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Position of the element.
    pub index: u32,
    /// Bits of its value.
    pub bits: u32,
}

#[inline(always)]
pub(super) fn add(values: &mut [f32], other: &[f32]) {
    values.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}

#[inline(always)]
pub(super) fn scale_copy(destination: &mut [f32], source: &[f32], factor: f32) {
    destination.iter_mut().zip(source).for_each(|(x, y)| *x = y * factor);
}

#[inline(always)]
pub(super) fn add_scaled(values: &mut [f32], other: &[f32], factor: f32) {
    values.iter_mut().zip(other).for_each(|(x, y)| *x += y * factor);
}

#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    let mut sums = [0.0; SUMS];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..SUMS {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter_mut().zip(a_rest).zip(b_rest).for_each(|((sum, a), b)| *sum += a * b);
    halved(sums)
}

/// Returns the sum of magnitudes times `factor`, in the lanes of [`dot`].
#[inline(always)]
pub(crate) fn magnitudes(values: &[f32], factor: f32) -> f32 {
    let (values, rest) = values.as_chunks::<SUMS>();
    let mut sums = [0.0; SUMS];
    for values in values {
        for lane in 0..SUMS {
            sums[lane] += values[lane].abs() * factor;
        }
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x.abs() * factor);
    halved(sums)
}

/// Adds the sums to each other, halving their number.
#[inline(always)]
pub(super) fn halved(mut sums: [f32; SUMS]) -> f32 {
    let mut half = SUMS / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Returns the bits of the largest magnitude: as integers they are ordered like the numbers, with NaN
/// above infinity.
#[inline(always)]
pub(super) fn max_magnitude(values: &[f32]) -> u32 {
    values.iter().fold(0, |max, x| max.max(x.abs().to_bits()))
}

pub(super) fn cast_encode<F: Format>(input: Input<'_>, output: &mut [u8]) -> u32 {
    let places = output.chunks_exact_mut(F::BYTES);
    let mut largest = 0;
    let mut put = |value: f32, bytes: &mut [u8]| {
        largest = largest.max(value.abs().to_bits());
        F::put(value, bytes);
    };
    match input {
        Input::Plain(values) => values.iter().zip(places).for_each(|(x, bytes)| put(*x, bytes)),
        Input::Feedback { values, residual } => {
            for ((x, residual), bytes) in values.iter_mut().zip(residual).zip(places) {
                let sum = *x + residual;
                put(sum, bytes);
                *x = sum - F::get(bytes);
            }
        }
    }
    largest
}

pub(super) fn cast_decode<F: Format>(encoded: &[u8], write: Write, values: &mut [f32]) {
    let pairs = values.iter_mut().zip(encoded.chunks_exact(F::BYTES));
    match write {
        Write::Set => pairs.for_each(|(x, bytes)| *x = F::get(bytes)),
        Write::Add => pairs.for_each(|(x, bytes)| *x += F::get(bytes)),
    }
}

/// Adds the residual, and appends to `found` the elements whose magnitude has at least the bits
/// `threshold`. Indices count from `first`.
pub(super) fn collect(input: Input<'_>, first: u32, threshold: u32, found: &mut Vec<Candidate>) {
    let values: &[f32] = match input {
        Input::Plain(values) => values,
        Input::Feedback { values, residual } => {
            add(values, residual);
            values
        }
    };
    let all = (first..).zip(values).map(|(index, x)| Candidate { index, bits: x.to_bits() });
    found.extend(all.filter(|candidate| candidate.bits & !SIGN >= threshold));
}
