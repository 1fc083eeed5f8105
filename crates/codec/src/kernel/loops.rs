//! The table of the loops that are written once for vectors of 16 lanes, and what they share.
//!
//! There is a file of them for every kind. [`kernels!`] compiles them for one implementation of [`Lanes`]. What is left over at the end of
//! a slice, less than a vector or a block, goes through the scalar loops. Lengths are asserted here
//! again, so that the functions in the table are safe whatever they are given.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every function here is unsafe for the same two reasons, which `Lanes` names"
)]

pub(super) use super::cast_loops::{decode, encode};
pub(super) use super::code_loops::{code_decode, code_encode};
pub(super) use super::collect_loops::collect;
use super::lanes::Lanes;
pub(super) use super::level_loops::{dequantise, quantise, random};
use super::levels::LANES;
pub(super) use super::sign_loops::{sign_decode, sign_encode};
pub(super) use super::sum_loops::{add, add_scaled, dot, largest, magnitudes, scale_copy};
use crate::Input;

/// The input as pointers: without feedback, `residual` is null and `values` is only read.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) values: *mut f32,
    residual: *const f32,
}

impl Source {
    pub(super) fn of(input: &mut Input<'_>) -> Source {
        match input {
            Input::Plain(values) => {
                Source { values: values.as_ptr().cast_mut(), residual: std::ptr::null() }
            }
            Input::Feedback { values, residual } => {
                Source { values: values.as_mut_ptr(), residual: residual.as_ptr() }
            }
        }
    }

    /// The sum of values and residual.
    #[inline(always)]
    pub(super) unsafe fn load<L: Lanes, const FEEDBACK: bool>(self, at: usize) -> L::F {
        let values = L::load(self.values.add(at));
        if FEEDBACK { L::add(values, L::load(self.residual.add(at))) } else { values }
    }
}

/// What follows the first `length` elements.
pub(super) fn rest<'a>(input: Input<'a>, length: usize) -> Input<'a> {
    match input {
        Input::Plain(values) => Input::Plain(&values[length..]),
        Input::Feedback { values, residual } => {
            Input::Feedback { values: &mut values[length..], residual: &residual[length..] }
        }
    }
}

/// Adds the residual to a block; returns the largest magnitude.
#[inline(always)]
pub(super) unsafe fn sum_block<L: Lanes, const FEEDBACK: bool>(
    source: Source,
    first: usize,
    length: usize,
) -> u32 {
    let mut largest = [L::splat_int(0); 2];
    for at in (first..first + length).step_by(2 * LANES) {
        for (half, largest) in largest.iter_mut().enumerate() {
            let at = at + half * LANES;
            let x = source.load::<L, FEEDBACK>(at);
            if FEEDBACK {
                L::store(source.values.add(at), x);
            }
            *largest = L::max(*largest, L::magnitude(x));
        }
    }
    L::largest(L::max(largest[0], largest[1]))
}

/// A table of all loops, compiled for `$lanes` with `$features`.
macro_rules! kernels {
    ($name:literal, $lanes:ty, $features:literal) => {
        use thinwire_wire::random::Key;

        use super::code_lanes::CodeLanes;
        use super::format::{BF16, F16, F32};
        use super::levels::Group;
        use super::lanes::{FormatLanes, LevelsLanes};
        use super::loops;
        use super::signs::Signs;
        use super::{Candidate, Cast, Coder, Int2, Int3, Int4, Int8};
        use super::{Kernels, OneBit, Quantiser, Signer};
        use crate::{Finite, Input, Write};

        static KERNELS: Kernels = Kernels {
            name: $name,
            add,
            scale_copy,
            add_scaled,
            dot,
            largest,
            magnitudes,
            f32: Cast { encode: encode::<F32>, decode: decode::<F32> },
            f16: Cast { encode: encode::<F16>, decode: decode::<F16> },
            bf16: Cast { encode: encode::<BF16>, decode: decode::<BF16> },
            int8: Quantiser { encode: quantise::<Int8>, decode: dequantise::<Int8> },
            int4: Quantiser { encode: quantise::<Int4>, decode: dequantise::<Int4> },
            int3: Quantiser { encode: quantise::<Int3>, decode: dequantise::<Int3> },
            int2: Signer { encode: sign_encode::<Int2>, decode: sign_decode::<Int2> },
            onebit: Signer { encode: sign_encode::<OneBit>, decode: sign_decode::<OneBit> },
            vote: Coder { encode: code_encode, decode: code_decode },
            threshold: Coder { encode: code_encode, decode: code_decode },
            levels: Coder { encode: code_encode, decode: code_decode },
            natural: Coder { encode: code_encode, decode: code_decode },
            e4m3: Coder { encode: code_encode, decode: code_decode },
            e5m2: Coder { encode: code_encode, decode: code_decode },
            dynamic8: Coder { encode: code_encode, decode: code_decode },
            random,
            collect,
        };

        loops::entry!($lanes, $features, add[](a: &mut [f32], b: &[f32]));
        loops::entry!($lanes, $features, scale_copy[](a: &mut [f32], b: &[f32], c: f32));
        loops::entry!($lanes, $features, add_scaled[](a: &mut [f32], b: &[f32], c: f32));
        loops::entry!($lanes, $features, dot[](a: &[f32], b: &[f32]) -> f32);
        loops::entry!($lanes, $features, largest[](a: &[f32]) -> u32);
        loops::entry!($lanes, $features, magnitudes[](a: &[f32], b: f32) -> f32);
        loops::entry!($lanes, $features, encode[F: FormatLanes](a: Input<'_>, b: &mut [u8]) -> u32);
        loops::entry!($lanes, $features, decode[F: FormatLanes](a: &[u8], b: Write, c: &mut [f32]));
        loops::entry!($lanes, $features, quantise[Q: LevelsLanes](a: Input<'_>, b: Option<Key>, c: &mut [u8]) -> Finite);
        loops::entry!($lanes, $features, dequantise[Q: LevelsLanes](a: &[u8], b: Write, c: &mut [f32]));
        loops::entry!($lanes, $features, sign_encode[S: Signs](a: Input<'_>, b: &mut [u8]) -> Finite);
        loops::entry!($lanes, $features, sign_decode[S: Signs](a: &[u8], b: Write, c: &mut [f32]));
        loops::entry!($lanes, $features, code_encode[C: CodeLanes](a: C, b: Input<'_>, c: Key, d: &mut [u8]) -> Finite);
        loops::entry!($lanes, $features, code_decode[C: CodeLanes](a: C, b: &[u8], c: Write, d: &mut [f32]));
        loops::entry!($lanes, $features, random[](a: Key, b: u64) -> Group);
        loops::entry!($lanes, $features, collect[](a: Input<'_>, b: u32, c: u32, d: &mut Vec<Candidate>));
    };
}

/// One safe function of the table.
macro_rules! entry {
    ($lanes:ty, $features:literal, $name:ident[$($generic:ident: $bound:ident)?]($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        fn $name$(<$generic: $bound>)?($($argument: $type),*) $(-> $result)? {
            #[target_feature(enable = $features)]
            unsafe fn compiled$(<$generic: $bound>)?($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller answers for the features; the loop keeps to its slices.
                unsafe { loops::$name::<$lanes $(, $generic)?>($($argument),*) }
            }
            // SAFETY: the table is handed out only where these features were detected.
            unsafe { compiled$(::<$generic>)?($($argument),*) }
        }
    };
}

pub(super) use {entry, kernels};
