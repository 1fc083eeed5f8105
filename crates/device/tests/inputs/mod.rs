//! Inputs on which kernels and codecs could differ.
#![allow(dead_code, reason = "each test uses some")]

use thinwire_wire::random::Key;

/// Description of values, and a function of their number and a seed.
pub type Kind = (&'static str, fn(usize, u64) -> Vec<f32>);

/// Returns all kinds of values.
pub fn kinds() -> [Kind; 16] {
    [
        ("normal", normal),
        ("ties of 1", ties::<1>),
        ("ties of 3", ties::<3>),
        ("ties of 7", ties::<7>),
        ("ties of 127", ties::<127>),
        ("ties of 448", ties::<448>),
        ("ties of 57344", ties::<57344>),
        ("ties of casts", ties_of_casts),
        ("all exponents", exponents),
        ("zeros of both signs", |n, seed| {
            of(n, seed, |word, _| if word & 1 == 0 { 0.0 } else { -0.0 })
        }),
        ("subnormal", |n, seed| of(n, seed, |word, _| f32::from_bits(word & 0x807f_ffff))),
        ("powers of two", |n, seed| of(n, seed, powers_of_two)),
        ("2^100 and 2^-100", |n, seed| of(n, seed, extreme_powers)),
        ("largest", |n, seed| {
            of(n, seed, |word, _| f32::from_bits((0x7f7f_ffff - (word & 7)) | (word & 1) << 31))
        }),
        ("one that is infinite or NaN", not_finite),
        ("any bits", |n, seed| of(n, seed, |word, _| f32::from_bits(word))),
    ]
}

fn of(length: usize, seed: u64, value: impl Fn(u32, usize) -> f32) -> Vec<f32> {
    let key = Key { seed, step: 0, tensor: length as u32 };
    (0..length).map(|at| value(key.word(at as u64), at)).collect()
}

/// Returns normally distributed values.
pub fn normal(length: usize, seed: u64) -> Vec<f32> {
    let key = Key { seed, step: 1, tensor: length as u32 };
    (0..length).map(|at| key.normal(at as u64) * 0.01).collect()
}

/// Returns values of every finite exponent.
pub fn exponents(length: usize, seed: u64) -> Vec<f32> {
    of(length, seed, |word, _| f32::from_bits(word & 0x807f_ffff | ((word >> 8) % 254) << 23))
}

/// Returns bytes of every kind.
pub fn bytes(length: usize, seed: u32) -> Vec<u8> {
    let key = Key { seed: seed.into(), step: 2, tensor: 0 };
    (0..length).map(|at| key.word(at as u64) as u8).collect()
}

/// Multiples of one half up to `MAX`, which is in every block of 64: a scale of `MAX` levels is 1. The
/// residual, of seed 2, is zero.
fn ties<const MAX: u32>(length: usize, seed: u64) -> Vec<f32> {
    of(length, seed, |word, at| {
        let half = (word % (4 * MAX + 1)) as f32 / 2.0 - MAX as f32;
        let x = if at % 64 == 0 { MAX as f32 } else { half };
        if seed == 1 { x } else { 0.0 }
    })
}

/// Values half-way between two of f16 or of bf16, normal and subnormal ones. The residual is zero.
fn ties_of_casts(length: usize, seed: u64) -> Vec<f32> {
    of(length, seed, |word, at| {
        let sign_and_digits = word & 0x807f_0000;
        let x = match at % 4 {
            0 => f32::from_bits(word & 0xffff_0000 & !(1 << 30) | 0x8000),
            1 => f32::from_bits(sign_and_digits | word & 0xe000 | (120 + word % 16) << 23 | 0x1000),
            2 => (f32::from(word as u16 % 2048) + 0.5) * 2.0f32.powi(-24),
            _ => f32::from(word as u16 % 4) * 2.0f32.powi(-25),
        };
        if seed == 1 { x } else { 0.0 }
    })
}

/// Powers from 2^-103 to 2^26, the largest in every block.
fn powers_of_two(word: u32, at: usize) -> f32 {
    let power = if at.is_multiple_of(64) { 26 } else { (word >> 1 & 0xffff) as i32 % 130 - 103 };
    (if word & 1 == 0 { 1.0 } else { -1.0 }) * 2.0f32.powi(power)
}

fn extreme_powers(word: u32, at: usize) -> f32 {
    let power = if (at / 256).is_multiple_of(2) { 100 } else { -100 };
    let sign = if word & 1 == 0 { 1.0 } else { -1.0 };
    sign * 2.0f32.powi(power) * [1.0, 0.5, 1.0 - f32::EPSILON, 0.0][word as usize >> 1 & 3]
}

fn not_finite(length: usize, seed: u64) -> Vec<f32> {
    let mut values = normal(length, seed);
    let bad = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    if let (1, Some(last)) = (seed, values.last_mut()) {
        *last = bad[length % 4];
    }
    values
}
