//! Reference loops, whose bits all other kernels must give.

use thinwire_wire::random::Key;

use super::bits::{SIGN, read_f32, round};
use super::format::Format;
use super::levels::{GROUP, Levels, RANDOM_BITS, SCALE_BYTES, Scale, random_group};
use crate::{Finite, Input, Write};

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

pub(super) fn add(values: &mut [f32], other: &[f32]) {
    values.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}

pub(super) fn scale_copy(destination: &mut [f32], source: &[f32], factor: f32) {
    destination.iter_mut().zip(source).for_each(|(x, y)| *x = y * factor);
}

pub(super) fn add_scaled(values: &mut [f32], other: &[f32], factor: f32) {
    values.iter_mut().zip(other).for_each(|(x, y)| *x += y * factor);
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    finish_dot([0.0; SUMS], a, b)
}

/// Returns the sum of magnitudes times `factor`, in the lanes of [`dot`].
pub(super) fn magnitudes(values: &[f32], factor: f32) -> f32 {
    let mut sums = [0.0; SUMS];
    for values in values.chunks(SUMS) {
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x.abs() * factor);
    }
    finish_dot(sums, &[], &[])
}

/// Adds `a * b` to the sums, then adds the sums to each other, halving their number.
pub(super) fn finish_dot(mut sums: [f32; SUMS], a: &[f32], b: &[f32]) -> f32 {
    for (a, b) in a.chunks(SUMS).zip(b.chunks(SUMS)) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
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

pub(super) fn quantise<Q: Levels>(input: Input<'_>, key: Option<Key>, output: &mut [u8]) -> Finite {
    quantise_from::<Q>(0, input, key, output)
}

/// Encodes the blocks from number `first` on, which selects the random numbers.
pub(super) fn quantise_from<Q: Levels>(
    first: usize,
    input: Input<'_>,
    key: Option<Key>,
    output: &mut [u8],
) -> Finite {
    let mut finite = Finite::Yes;
    let places = output.chunks_mut(Q::BLOCK_BYTES);
    let group = |block| ((first + block) * (Q::BLOCK / GROUP)) as u64;
    match input {
        Input::Plain(values) => {
            for (block, (values, bytes)) in values.chunks(Q::BLOCK).zip(places).enumerate() {
                finite = finite.and(quantise_block::<Q>(values, key, group(block), bytes));
            }
        }
        Input::Feedback { values, residual } => {
            let values = values.chunks_mut(Q::BLOCK).zip(residual.chunks(Q::BLOCK));
            for (block, ((values, residual), bytes)) in values.zip(places).enumerate() {
                add(values, residual);
                finite = finite.and(quantise_block::<Q>(values, key, group(block), bytes));
                subtract_block::<Q>(bytes, values);
            }
        }
    }
    finite
}

fn quantise_block<Q: Levels>(
    values: &[f32],
    key: Option<Key>,
    group: u64,
    bytes: &mut [u8],
) -> Finite {
    let (head, codes) = bytes.split_at_mut(SCALE_BYTES);
    let Some(scale) = Scale::of(max_magnitude(values), Q::MAX, key.is_some()) else {
        head.copy_from_slice(&f32::NAN.to_le_bytes());
        codes.fill(0);
        return Finite::No;
    };
    head.copy_from_slice(&scale.scale.to_le_bytes());
    let groups = values.chunks(GROUP).zip(codes.chunks_mut(Q::codes_len(GROUP)));
    for ((values, bytes), group) in groups.zip(group..) {
        let mut codes = [0; GROUP];
        match key {
            None => nearest(values, scale.inverse, &mut codes),
            Some(key) => {
                stochastic(values, scale.inverse, &random_group(key, group), Q::MAX, &mut codes);
            }
        }
        Q::pack(&codes[..values.len()], bytes);
    }
    Finite::Yes
}

fn nearest(values: &[f32], inverse: f32, codes: &mut [i32]) {
    codes.iter_mut().zip(values).for_each(|(code, x)| *code = round(x * inverse));
}

/// Rounds up with the probability that makes the mean right: the digits behind the point and random
/// ones carry.
fn stochastic(values: &[f32], inverse: f32, random: &[u16], max: i32, codes: &mut [i32]) {
    let digits = inverse * (1 << RANDOM_BITS) as f32;
    for ((code, x), random) in codes.iter_mut().zip(values).zip(random) {
        *code = ((round(x * digits) + i32::from(*random)) >> RANDOM_BITS).min(max);
    }
}

/// Subtracts the decoded block from the values, unless the block is not finite.
fn subtract_block<Q: Levels>(bytes: &[u8], values: &mut [f32]) {
    let (head, codes) = bytes.split_at(SCALE_BYTES);
    let scale = read_f32(head);
    if scale.is_nan() {
        return;
    }
    for (element, x) in values.iter_mut().enumerate() {
        *x -= Q::code(codes, element) as f32 * scale;
    }
}

pub(super) fn dequantise<Q: Levels>(encoded: &[u8], write: Write, values: &mut [f32]) {
    let blocks = values.chunks_mut(Q::BLOCK).zip(encoded.chunks(Q::BLOCK_BYTES));
    for (values, bytes) in blocks {
        let (head, codes) = bytes.split_at(SCALE_BYTES);
        let scale = read_f32(head);
        let decoded = |element| Q::code(codes, element) as f32 * scale;
        let values = values.iter_mut().enumerate();
        match write {
            Write::Set => values.for_each(|(element, x)| *x = decoded(element)),
            Write::Add => values.for_each(|(element, x)| *x += decoded(element)),
        }
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
