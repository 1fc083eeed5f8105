//! Choice of instructions: every loop, compiled for each set that may be there.
//!
//! The bits of a result do not depend on the set: no operation is reordered or fused.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use thinwire_wire::random::Key;

use super::codes::{decode as code_decode, encode as code_encode};
use super::group::{Group, random};
use super::rans::{DecodeTable, Decoder, EncodeTable, Encoder, rans_decode, rans_encode};
use super::scalar::{
    Candidate, add, add_scaled, cast_decode, cast_encode, collect, dot, max_magnitude, scale_copy,
};
#[cfg(target_arch = "x86_64")]
use super::vector::{self, Avx2, Avx512};
use super::{CodeLanes, FormatLanes};
use crate::{Finite, Input, Write};

/// All loops, compiled for one set of instructions that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernels(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Returns the fastest kernels of this machine.
pub(crate) fn imp() -> Kernels {
    static CHOSEN: OnceLock<Kernels> = OnceLock::new();
    *CHOSEN.get_or_init(|| Kernels::available().last().copied().unwrap_or(Kernels::SCALAR))
}

impl Kernels {
    /// The scalar reference, which runs on every machine.
    pub const SCALAR: Kernels = Kernels(Instructions::Scalar);

    /// Returns all kernels that this machine can run, the fastest last.
    pub fn available() -> Vec<Kernels> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "nothing is added"))]
        let mut kernels = vec![Kernels::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                kernels.push(Kernels(Instructions::Avx2));
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                kernels.push(Kernels(Instructions::Avx512));
            }
        }
        kernels
    }

    /// Returns `scalar`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "avx512",
        }
    }
}

/// A loop that is compiled for the machine, as far as it is inlined into [`Work::run`].
pub(crate) trait Work {
    /// Result of the loop.
    type Output;

    /// Runs the loop; implementations are marked `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs `work` without vector instructions.
#[inline(always)]
fn run<W: Work>(work: W) -> W::Output {
    work.run()
}

/// Calls a loop from a function that is compiled for the instructions of a set.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled {
    (
        $set:ident, $features:literal, $sort:ident
        $name:ident[$($generic:ident: $bound:ident)?]($($argument:ident: $type:ty),*) [$($result:ty)?]
    ) => {{
        #[target_feature(enable = $features)]
        fn compiled$(<$generic: $bound>)?($($argument: $type),*) $(-> $result)? {
            compiled!(@$sort $set $name [$($generic)?]($($argument),*))
        }
        // SAFETY: kernels exist only for instructions that were detected.
        unsafe { compiled$(::<$generic>)?($($argument),*) }
    }};
    (@scalar $set:ident $name:ident [$($generic:ident)?] $arguments:tt) => {
        $name$(::<$generic>)? $arguments
    };
    (@vector $set:ident $name:ident [$($generic:ident)?] $arguments:tt) => {
        // SAFETY: the features are on here, and the loop keeps to its slices.
        unsafe { vector::$name::<$set $(, $generic)?> $arguments }
    };
}

/// One method per loop: the scalar function of that name, which the compiler turns into vectors by
/// itself, or the one in `vector` where there are vector instructions.
macro_rules! loops {
    ($(
        $(#[$doc:meta])*
        $sort:ident
        $name:ident$([$generic:ident: $bound:ident])?($($argument:ident: $type:ty),*) $(-> $result:ty)?;
    )*) => {
        impl Kernels {$(
            $(#[$doc])*
            pub fn $name$(<$generic: $bound>)?(self, $($argument: $type),*) $(-> $result)? {
                match self.0 {
                    Instructions::Scalar => $name$(::<$generic>)?($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx2 => compiled!(
                        Avx2, "avx2,f16c",
                        $sort $name[$($generic: $bound)?]($($argument: $type),*) [$($result)?]
                    ),
                    #[cfg(target_arch = "x86_64")]
                    Instructions::Avx512 => compiled!(
                        Avx512, "avx512f,avx512bw,avx512dq,avx512vl",
                        $sort $name[$($generic: $bound)?]($($argument: $type),*) [$($result)?]
                    ),
                }
            }
        )*}
    };
}

loops! {
    scalar add(values: &mut [f32], other: &[f32]);
    scalar scale_copy(destination: &mut [f32], source: &[f32], factor: f32);
    scalar add_scaled(values: &mut [f32], other: &[f32], factor: f32);
    scalar dot(a: &[f32], b: &[f32]) -> f32;
    scalar max_magnitude(values: &[f32]) -> u32;
    /// Encodes in a format; returns the bits of the largest magnitude.
    vector cast_encode[F: FormatLanes](input: Input<'_>, output: &mut [u8]) -> u32;
    vector cast_decode[F: FormatLanes](encoded: &[u8], write: Write, values: &mut [f32]);
    vector code_encode[C: CodeLanes](code: C, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite;
    vector code_decode[C: CodeLanes](code: C, encoded: &[u8], write: Write, values: &mut [f32]);
    /// Returns [`RANDOM_BITS`](super::RANDOM_BITS) random bits for each element of a group.
    vector random(key: Key, group: u64) -> Group;
    /// Adds the residual, and appends to `found` the elements whose magnitude has at least the
    /// bits `threshold`, which are not 0. Indices count from `first`.
    vector collect(input: Input<'_>, first: u32, threshold: u32, found: &mut Vec<Candidate>);
    vector rans_encode(coder: &mut Encoder<'_>, table: &EncodeTable, symbols: &[u8]);
    vector rans_decode(coder: &mut Decoder<'_>, table: &DecodeTable, symbols: &mut [u8]);
    /// Runs a loop that is compiled for the machine.
    scalar run[W: Work](work: W) -> W::Output;
}
