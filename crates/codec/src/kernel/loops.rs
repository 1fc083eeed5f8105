//! The loops of `scalar`, written once for vectors of 16 lanes.
//!
//! [`kernels!`] compiles them for one implementation of [`Lanes`]. What is left over at the end of
//! a slice, less than a vector or a block, goes through the scalar loops. Lengths are asserted here
//! again, so that the functions in the table are safe whatever they are given.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every function here is unsafe for the same two reasons, which `Lanes` names"
)]

use thinwire_wire::random::Key;

pub(super) use super::code_loops::{code_decode, code_encode};
use super::lanes::{FormatLanes, Lanes, LevelsLanes};
use super::levels::{GROUP, Group, LANES, RANDOM_BITS, SCALE_BYTES, Scale};
pub(super) use super::sign_loops::{sign_decode, sign_encode};
use super::{Candidate, scalar};
use crate::{Finite, Input, Write};

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

#[inline(always)]
pub(super) unsafe fn add<L: Lanes>(values: &mut [f32], other: &[f32]) {
    assert_eq!(values.len(), other.len());
    let whole = values.len() / LANES * LANES;
    let (to, from) = (values.as_mut_ptr(), other.as_ptr());
    for at in (0..whole).step_by(LANES) {
        L::store(to.add(at), L::add(L::load(to.add(at)), L::load(from.add(at))))
    }
    scalar::add(&mut values[whole..], &other[whole..]);
}

#[inline(always)]
pub(super) unsafe fn scale_copy<L: Lanes>(destination: &mut [f32], source: &[f32], factor: f32) {
    assert_eq!(destination.len(), source.len());
    let whole = destination.len() / LANES * LANES;
    let (to, from) = (destination.as_mut_ptr(), source.as_ptr());
    {
        let scale = L::splat(factor);
        for at in (0..whole).step_by(LANES) {
            L::store(to.add(at), L::mul(L::load(from.add(at)), scale));
        }
    }
    scalar::scale_copy(&mut destination[whole..], &source[whole..], factor);
}

#[inline(always)]
pub(super) unsafe fn add_scaled<L: Lanes>(values: &mut [f32], other: &[f32], factor: f32) {
    assert_eq!(values.len(), other.len());
    let whole = values.len() / LANES * LANES;
    let (to, from) = (values.as_mut_ptr(), other.as_ptr());
    {
        let scale = L::splat(factor);
        for at in (0..whole).step_by(LANES) {
            let product = L::mul(L::load(from.add(at)), scale);
            L::store(to.add(at), L::add(L::load(to.add(at)), product));
        }
    }
    scalar::add_scaled(&mut values[whole..], &other[whole..], factor);
}

#[inline(always)]
pub(super) unsafe fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let whole = a.len() / scalar::SUMS * scalar::SUMS;
    let (left, right) = (a.as_ptr(), b.as_ptr());
    let mut sums = [0.0; scalar::SUMS];
    {
        let mut vectors = [L::splat(0.0); 2];
        for at in (0..whole).step_by(scalar::SUMS) {
            for (half, sum) in vectors.iter_mut().enumerate() {
                let at = at + half * LANES;
                *sum = L::add(*sum, L::mul(L::load(left.add(at)), L::load(right.add(at))));
            }
        }
        L::store(sums.as_mut_ptr(), vectors[0]);
        L::store(sums.as_mut_ptr().add(LANES), vectors[1]);
    }
    scalar::finish_dot(sums, &a[whole..], &b[whole..])
}

#[inline(always)]
pub(super) unsafe fn magnitudes<L: Lanes>(values: &[f32], factor: f32) -> f32 {
    let whole = values.len() / scalar::SUMS * scalar::SUMS;
    let mut vectors = [L::splat(0.0); 2];
    for at in (0..whole).step_by(scalar::SUMS) {
        for (half, sum) in vectors.iter_mut().enumerate() {
            let x = L::load(values.as_ptr().add(at + half * LANES));
            let magnitude = L::from_bits(L::magnitude(x));
            *sum = L::add(*sum, L::mul(magnitude, L::splat(factor)));
        }
    }
    if whole == values.len() {
        return L::sum(L::add(vectors[0], vectors[1]));
    }
    let mut sums = [0.0; scalar::SUMS];
    L::store(sums.as_mut_ptr(), vectors[0]);
    L::store(sums.as_mut_ptr().add(LANES), vectors[1]);
    scalar::finish_magnitudes(sums, &values[whole..], factor)
}

#[inline(always)]
pub(super) unsafe fn largest<L: Lanes>(values: &[f32]) -> u32 {
    let whole = values.len() / LANES * LANES;
    let found = {
        let mut largest = L::splat_int(0);
        for at in (0..whole).step_by(LANES) {
            largest = L::max(largest, L::magnitude(L::load(values.as_ptr().add(at))));
        }
        L::largest(largest)
    };
    found.max(scalar::largest(&values[whole..]))
}

#[inline(always)]
pub(super) unsafe fn encode<L: Lanes, F: FormatLanes>(
    mut input: Input<'_>,
    output: &mut [u8],
) -> u32 {
    assert_eq!(output.len(), input.len() * F::BYTES);
    let whole = input.len() / LANES * LANES;
    let source = Source::of(&mut input);
    let found = {
        match input {
            Input::Plain(_) => encode_whole::<L, F, false>(source, output.as_mut_ptr(), whole),
            Input::Feedback { .. } => {
                encode_whole::<L, F, true>(source, output.as_mut_ptr(), whole)
            }
        }
    };
    found.max(scalar::encode::<F>(rest(input, whole), &mut output[whole * F::BYTES..]))
}

#[inline(always)]
unsafe fn encode_whole<L: Lanes, F: FormatLanes, const FEEDBACK: bool>(
    source: Source,
    output: *mut u8,
    length: usize,
) -> u32 {
    let mut largest = L::splat_int(0);
    for at in (0..length).step_by(LANES) {
        let x = source.load::<L, FEEDBACK>(at);
        let bytes = output.add(at * F::BYTES);
        F::store::<L>(bytes, x);
        largest = L::max(largest, L::magnitude(x));
        if FEEDBACK {
            L::store(source.values.add(at), L::sub(x, F::load::<L>(bytes)));
        }
    }
    L::largest(largest)
}

#[inline(always)]
pub(super) unsafe fn decode<L: Lanes, F: FormatLanes>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    assert_eq!(encoded.len(), values.len() * F::BYTES);
    let whole = values.len() / LANES * LANES;
    let (from, to) = (encoded.as_ptr(), values.as_mut_ptr());
    {
        match write {
            Write::Set => {
                for at in (0..whole).step_by(LANES) {
                    L::store(to.add(at), F::load::<L>(from.add(at * F::BYTES)));
                }
            }
            Write::Add => {
                for at in (0..whole).step_by(LANES) {
                    let x = F::load::<L>(from.add(at * F::BYTES));
                    L::store(to.add(at), L::add(L::load(to.add(at)), x));
                }
            }
        }
    }
    scalar::decode::<F>(&encoded[whole * F::BYTES..], write, &mut values[whole..]);
}

#[inline(always)]
pub(super) unsafe fn quantise<L: Lanes, Q: LevelsLanes>(
    mut input: Input<'_>,
    key: Option<Key>,
    output: &mut [u8],
) -> Finite {
    let blocks = input.len() / Q::BLOCK;
    let source = Source::of(&mut input);
    let mut finite = Finite::Yes;
    for block in 0..blocks {
        let bytes = &mut output[block * Q::BLOCK_BYTES..][..Q::BLOCK_BYTES];
        let at = block * Q::BLOCK;
        finite = finite.and({
            match (&input, key) {
                (Input::Plain(_), None) => {
                    quantise_block::<L, Q, false, false>(source, at, None, bytes)
                }
                (Input::Plain(_), key) => {
                    quantise_block::<L, Q, false, true>(source, at, key, bytes)
                }
                (_, None) => quantise_block::<L, Q, true, false>(source, at, None, bytes),
                (_, key) => quantise_block::<L, Q, true, true>(source, at, key, bytes),
            }
        });
    }
    let (input, output) = (rest(input, blocks * Q::BLOCK), &mut output[blocks * Q::BLOCK_BYTES..]);
    finite.and(scalar::quantise_from::<Q>(blocks, input, key, output))
}

/// Two passes over a block that is in the nearest cache after the first.
#[inline(always)]
unsafe fn quantise_block<L: Lanes, Q: LevelsLanes, const FEEDBACK: bool, const RANDOM: bool>(
    source: Source,
    first: usize,
    key: Option<Key>,
    bytes: &mut [u8],
) -> Finite {
    let (head, codes) = bytes.split_at_mut(SCALE_BYTES);
    let largest = { sum_block::<L, FEEDBACK>(source, first, Q::BLOCK) };
    let Some(Scale { scale, inverse }) = Scale::of(largest, Q::MAX, RANDOM) else {
        head.copy_from_slice(&f32::NAN.to_le_bytes());
        codes.fill(0);
        return Finite::No;
    };
    head.copy_from_slice(&scale.to_le_bytes());
    let to = codes.as_mut_ptr();
    {
        let digits = if RANDOM { inverse * (1 << RANDOM_BITS) as f32 } else { inverse };
        let (inverse, scale) = (L::splat(digits), L::splat(scale));
        let mut random = [L::splat_int(0); GROUP / LANES];
        for pair in 0..Q::BLOCK / 32 {
            let at = first + pair * 32;
            if let (true, Some(key), 0) = (RANDOM, key, at % GROUP) {
                random = random_group::<L>(key, (at / GROUP) as u64);
            }
            let values = [source.values.add(at), source.values.add(at + LANES)];
            let mut codes = [L::splat_int(0); 2];
            for half in 0..2 {
                let x = L::load(values[half]);
                let mut code = L::round(L::mul(x, inverse));
                if RANDOM {
                    let sum = L::add_int(code, random[(at % GROUP) / LANES + half]);
                    let floor = L::shift_right_signed::<RANDOM_BITS>(sum);
                    code = L::min(floor, L::splat_int(Q::MAX as u32));
                }
                if FEEDBACK {
                    L::store(values[half], L::sub(x, L::mul(L::float(code), scale)));
                }
                codes[half] = code;
            }
            Q::store_codes::<L>(to, pair, codes);
        }
    }
    Finite::Yes
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

/// The numbers of `levels::random_group`.
#[inline(always)]
pub(super) unsafe fn random_group<L: Lanes>(key: Key, group: u64) -> [L::I; GROUP / LANES] {
    let (counter, [key0, key1]) = key.philox_input(group * LANES as u64);
    let mut c = counter.map(|word| L::splat_int(word));
    c[0] = L::add_int(c[0], L::iota());
    let mut keys = [key0, key1];
    for _ in 0..10 {
        let low = L::mul_wide(c[0], L::splat_int(0xD251_1F53));
        let high = L::mul_wide(c[2], L::splat_int(0xCD9E_8D57));
        c = [
            L::xor(L::xor(high.0, c[1]), L::splat_int(keys[0])),
            high.1,
            L::xor(L::xor(low.0, c[3]), L::splat_int(keys[1])),
            low.1,
        ];
        keys = [keys[0].wrapping_add(0x9E37_79B9), keys[1].wrapping_add(0xBB67_AE85)];
    }
    let lower = L::splat_int(0x7fff);
    let mut random = [lower; GROUP / LANES];
    for word in 0..4 {
        random[2 * word] = L::and(L::shift_right::<1>(c[word]), lower);
        random[2 * word + 1] = L::shift_right::<17>(c[word]);
    }
    random
}

#[inline(always)]
pub(super) unsafe fn random<L: Lanes>(key: Key, group: u64) -> Group {
    let mut words = Group([0; GROUP]);
    for (vector, random) in random_group::<L>(key, group).into_iter().enumerate() {
        L::store(words.0.as_mut_ptr().add(vector * LANES).cast(), L::from_bits(random));
    }
    words
}

#[inline(always)]
pub(super) unsafe fn dequantise<L: Lanes, Q: LevelsLanes>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    let blocks = values.len() / Q::BLOCK;
    let to = values.as_mut_ptr();
    for block in 0..blocks {
        let (head, codes) = encoded[block * Q::BLOCK_BYTES..].split_at(SCALE_BYTES);
        let scale = f32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let codes = codes[..Q::BLOCK_BYTES - SCALE_BYTES].as_ptr();
        let (to, scale) = (to.add(block * Q::BLOCK), L::splat(scale));
        match write {
            Write::Set => dequantise_block::<L, Q, false>(codes, scale, to),
            Write::Add => dequantise_block::<L, Q, true>(codes, scale, to),
        }
    }
    let encoded = &encoded[blocks * Q::BLOCK_BYTES..];
    scalar::dequantise::<Q>(encoded, write, &mut values[blocks * Q::BLOCK..]);
}

#[inline(always)]
unsafe fn dequantise_block<L: Lanes, Q: LevelsLanes, const ADD: bool>(
    codes: *const u8,
    scale: L::F,
    to: *mut f32,
) {
    for pair in 0..Q::BLOCK / 32 {
        let codes = Q::load_codes::<L>(codes, pair);
        for (half, code) in codes.into_iter().enumerate() {
            let to = to.add(pair * 32 + half * LANES);
            let x = L::mul(L::float(code), scale);
            L::store(to, if ADD { L::add(L::load(to), x) } else { x });
        }
    }
}

#[inline(always)]
pub(super) unsafe fn collect<L: Lanes>(
    mut input: Input<'_>,
    first: u32,
    threshold: u32,
    found: &mut Vec<Candidate>,
) {
    let whole = input.len() / WORD * WORD;
    let source = Source::of(&mut input);
    found.reserve(whole + AT_ONCE);
    match input {
        Input::Plain(_) => collect_whole::<L, false>(source, whole, first, threshold, found),
        Input::Feedback { .. } => {
            collect_whole::<L, true>(source, whole, first, threshold, found);
        }
    }
    scalar::collect(rest(input, whole), first + whole as u32, threshold, found);
}

/// Elements that are compared before any is listed.
const WORD: usize = 4 * LANES;
/// Elements that are listed whether they are there or not: guessing wrong costs more.
const AT_ONCE: usize = 4;

/// The list has room for `length` more and [`AT_ONCE`].
#[inline(always)]
unsafe fn collect_whole<L: Lanes, const FEEDBACK: bool>(
    source: Source,
    length: usize,
    first: u32,
    threshold: u32,
    found: &mut Vec<Candidate>,
) {
    let mut to = found.as_mut_ptr().add(found.len());
    let below = L::splat_int(threshold - 1);
    for at in (0..length).step_by(WORD) {
        let mut word = 0;
        for vector in 0..WORD / LANES {
            let at = at + vector * LANES;
            let x = source.load::<L, FEEDBACK>(at);
            if FEEDBACK {
                L::store(source.values.add(at), x);
            }
            word |= u64::from(L::above(L::magnitude(x), below)) << (vector * LANES);
        }
        let end = to.add(word.count_ones() as usize);
        loop {
            for place in 0..AT_ONCE {
                let at = at + word.trailing_zeros() as usize % WORD;
                let bits = (*source.values.add(at)).to_bits();
                to.add(place).write(Candidate { index: first + at as u32, bits });
                word &= word.wrapping_sub(1);
            }
            if word == 0 {
                break;
            }
            to = to.add(AT_ONCE);
        }
        to = end;
    }
    found.set_len(to.offset_from_unsigned(found.as_ptr()));
}

/// A table of the loops above, compiled for `$lanes` with `$features`.
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
