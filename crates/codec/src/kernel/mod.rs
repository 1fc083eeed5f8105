//! Loops over slices of f32, as a scalar reference and compiled for vector instructions.
//!
//! `scalar` and `codes` define the results; `vector` computes the same bits with AVX2 or
//! AVX-512 (only the payload of a NaN made from two NaNs may differ). `dispatch` asks once what
//! the machine can do.

pub(crate) mod bits;
pub(crate) mod codes;
mod dispatch;
mod format;
pub(crate) mod group;
pub(crate) mod rans;
mod scalar;
pub(crate) mod uniform;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod vector;

pub(crate) use bits::{Rounding, SMALLEST, Scale, UNUSED};
pub(crate) use dispatch::{Work, imp};
pub(crate) use format::{BF16, F16, F32, Format, round_to_bf16};
pub(crate) use group::{GROUP, Group, RANDOM_BITS};
pub(crate) use scalar::{Candidate, magnitudes};
#[cfg(target_arch = "x86_64")]
pub(crate) use vector::{CodeLanes, FormatLanes};

// Without vector instructions the scalar traits are all that loops ask for.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use {codes::Code as CodeLanes, format::Format as FormatLanes};

use self::uniform::CHUNK;

/// Returns the name of the instructions in use: `scalar`, `avx2` or `avx512`.
pub fn name() -> &'static str {
    imp().name()
}

/// Adds `other` to `values`, element by element.
///
/// # Panics
/// If the slices differ in length.
pub fn add(values: &mut [f32], other: &[f32]) {
    assert_eq!(values.len(), other.len(), "add");
    imp().add(values, other);
}

/// Writes `source * factor` to `destination`, element by element.
///
/// # Panics
/// If the slices differ in length.
pub fn scale_copy(destination: &mut [f32], source: &[f32], factor: f32) {
    assert_eq!(destination.len(), source.len(), "scale_copy");
    imp().scale_copy(destination, source, factor);
}

/// Writes `source * factor` to `destination`, element by element. Returns the bits of the largest magnitude
/// that was written. If a value is NaN, the result is greater than the bits of infinity.
///
/// # Panics
/// If the slices differ in length.
pub fn pack(destination: &mut [f32], source: &[f32], factor: f32) -> u32 {
    assert_eq!(destination.len(), source.len(), "pack");
    // A chunk is still in the cache when it is looked at again.
    destination.chunks_mut(CHUNK).zip(source.chunks(CHUNK)).fold(0, |largest, (to, from)| {
        scale_copy(to, from, factor);
        largest.max(max_magnitude(to))
    })
}

/// Adds `other * factor` to `values`, element by element. Product and sum are rounded separately.
///
/// # Panics
/// If the slices differ in length.
pub fn add_scaled(values: &mut [f32], other: &[f32], factor: f32) {
    assert_eq!(values.len(), other.len(), "add_scaled");
    imp().add_scaled(values, other, factor);
}

/// Returns the scalar product, with the same order of summation on every machine: chunks of 4,096
/// elements are summed in 32 lanes, whose sums are added by halves; then the chunks are added in order.
///
/// # Panics
/// If the slices differ in length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot");
    let chunks = a.chunks(CHUNK).zip(b.chunks(CHUNK)).map(|(a, b)| imp().dot(a, b));
    chunks.reduce(|sum, of_chunk| sum + of_chunk).unwrap_or(0.0)
}

/// Returns the sum of squares, with the same order of summation on every machine: chunks of 4,096
/// elements are summed in 16 lanes, whose sums are added in order; then the chunks are added in order.
pub fn squares(values: &[f32]) -> f64 {
    imp().run(uniform::Squares(values))
}

/// Returns the bits of the largest magnitude. If a value is NaN, the result is greater than the
/// bits of infinity.
pub fn max_magnitude(values: &[f32]) -> u32 {
    imp().max_magnitude(values)
}

/// Returns whether all values are finite.
pub fn is_finite(values: &[f32]) -> bool {
    max_magnitude(values) < bits::INFINITY
}

#[cfg(test)]
mod tests;
