//! The loops over numbers.
//!
//! `scalar` says what they compute; the others compute the same bits with the machine's vectors
//! (where two NaNs meet, which of them is left is open). What the machine can do is asked once.

pub(crate) mod codes;
mod format;
mod levels;
mod scalar;
mod signs;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod cast_loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod code_lanes;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod code_loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod collect_loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod lanes;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod level_loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod plane_lanes;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod sign_loops;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod sum_loops;
#[allow(unsafe_code)]
mod wide;

use std::sync::OnceLock;

use thinwire_wire::random::Key;

pub(crate) use codes::block_len;
pub(crate) use format::{BF16, F16, F32, Format};
pub(crate) use levels::{GROUP, Group, Int3, Int4, Int8, Levels, RANDOM_BITS, Scale};
pub(crate) use signs::{BLOCK as SIGNS_BLOCK, Int2, OneBit, Signs};
pub(crate) use wide::{Work, wide};

use crate::coded::Code;
use crate::dynamic8::Dynamic8;
use crate::float8::{E4M3, E5M2};
use crate::natural::Natural;
use crate::qsgd::Levels as RandomLevels;
use crate::tbq::Threshold;
use crate::vote::Vote;
use crate::{Finite, Input, Write};

/// One implementation of every loop. Lengths have been checked by whoever calls.
pub(crate) struct Kernels {
    name: &'static str,
    add: fn(&mut [f32], &[f32]),
    scale_copy: fn(&mut [f32], &[f32], f32),
    add_scaled: fn(&mut [f32], &[f32], f32),
    dot: fn(&[f32], &[f32]) -> f32,
    largest: fn(&[f32]) -> u32,
    /// The sum of magnitudes times a factor, in the lanes of a scalar product.
    pub magnitudes: fn(&[f32], f32) -> f32,
    pub f32: Cast,
    pub f16: Cast,
    pub bf16: Cast,
    pub int8: Quantiser,
    pub int4: Quantiser,
    pub int3: Quantiser,
    pub int2: Signer,
    pub onebit: Signer,
    pub vote: Coder<Vote>,
    pub threshold: Coder<Threshold>,
    pub levels: Coder<RandomLevels>,
    pub natural: Coder<Natural>,
    pub e4m3: Coder<E4M3>,
    pub e5m2: Coder<E5M2>,
    pub dynamic8: Coder<Dynamic8>,
    /// [`RANDOM_BITS`] random bits for each element of the group of this number.
    pub random: fn(Key, u64) -> Group,
    /// Adds the residual, and appends to the list the elements whose magnitude has at least the
    /// bits of the third argument, which are not 0; the second is the first element's index.
    pub collect: fn(Input<'_>, u32, u32, &mut Vec<Candidate>),
}

/// The loops of a [`Format`].
pub(crate) struct Cast {
    /// Returns the largest magnitude, as [`largest`] does.
    pub encode: fn(Input<'_>, &mut [u8]) -> u32,
    pub decode: fn(&[u8], Write, &mut [f32]),
}

/// The loops of [`Levels`].
pub(crate) struct Quantiser {
    /// Rounds to nearest without a key.
    pub encode: fn(Input<'_>, Option<Key>, &mut [u8]) -> Finite,
    pub decode: fn(&[u8], Write, &mut [f32]),
}

/// The loops of [`Signs`].
pub(crate) struct Signer {
    pub encode: fn(Input<'_>, &mut [u8]) -> Finite,
    pub decode: fn(&[u8], Write, &mut [f32]),
}

/// The loops of a [`Code`].
pub(crate) struct Coder<C: Code> {
    pub encode: fn(C, Input<'_>, Key, &mut [u8]) -> Finite,
    pub decode: fn(C, &[u8], Write, &mut [f32]),
}

/// An element that may be among the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Which element.
    pub index: u32,
    /// Its value's bits.
    pub bits: u32,
}

/// The best implementation for this machine.
pub(crate) fn imp() -> &'static Kernels {
    static CHOSEN: OnceLock<&Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| available().last().copied().unwrap_or(&scalar::KERNELS))
}

/// Every implementation that this machine can run, the best last.
fn available() -> Vec<&'static Kernels> {
    let mut kernels = vec![&scalar::KERNELS];
    #[cfg(target_arch = "x86_64")]
    {
        kernels.extend(avx2::detect());
        kernels.extend(avx512::detect());
    }
    kernels
}

/// The name of the implementation in use: `scalar`, `avx2`, `avx512`.
pub fn name() -> &'static str {
    imp().name
}

/// `values += other`, element by element.
///
/// # Panics
/// Here as below, if the slices differ in length.
pub fn add(values: &mut [f32], other: &[f32]) {
    assert_eq!(values.len(), other.len(), "add");
    (imp().add)(values, other);
}

/// `destination = source * factor`, element by element.
pub fn scale_copy(destination: &mut [f32], source: &[f32], factor: f32) {
    assert_eq!(destination.len(), source.len(), "scale_copy");
    (imp().scale_copy)(destination, source, factor);
}

/// `values += other * factor`, element by element; product and sum are rounded each.
pub fn add_scaled(values: &mut [f32], other: &[f32], factor: f32) {
    assert_eq!(values.len(), other.len(), "add_scaled");
    (imp().add_scaled)(values, other, factor);
}

/// The scalar product, summed in 32 lanes whatever the machine.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot");
    (imp().dot)(a, b)
}

/// The largest magnitude, as bits without sign: above all numbers if there is a NaN.
pub fn largest(values: &[f32]) -> u32 {
    (imp().largest)(values)
}

/// Whether there is no NaN and no infinity.
pub fn is_finite(values: &[f32]) -> bool {
    largest(values) < f32::INFINITY.to_bits()
}

#[cfg(test)]
mod tests;
