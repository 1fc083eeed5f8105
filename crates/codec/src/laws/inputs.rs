//! Inputs of laws, values of every shape, and one encoding of them.

use thinwire_wire::random::Key;

use crate::{Codec, Finite, Input, Write};

/// Key of encodings that a law does not choose.
pub(super) const KEY: Key = Key { seed: 11, step: 5, tensor: 2 };

/// Description of values, and the values.
pub(super) type Named = (&'static str, Vec<f32>);

/// Returns lengths around every block and vector.
pub(super) fn lengths(codec: &dyn Codec) -> Vec<usize> {
    let block = codec.block();
    vec![0, 1, 7, 8, 9, 63, 64, 65, block - 1, block, block + 1, 3 * block + 5, 1009]
}

fn of(length: usize, value: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..length).map(value).collect()
}

/// Returns values of every shape, below 100 in magnitude and mostly above 1e-3.
pub(super) fn ordinary(length: usize) -> Vec<Named> {
    let key = Key { seed: 3, step: 0, tensor: length as u32 };
    let pareto = |i| 0.01 / (1.01 - key.uniform(i)) * key.normal(i).signum();
    vec![
        ("one hot", of(length, |i| if i == length / 2 { -3.0 } else { 0.0 })),
        ("flat", of(length, |_| 0.37)),
        ("alternating", of(length, |i| if i % 2 == 0 { 1.7 } else { -1.7 })),
        ("two sizes", of(length, |i| if i % 5 == 0 { 10.0 } else { 0.6 })),
        ("ramp", of(length, |i| (i as f32 - length as f32 / 2.0) / length as f32)),
        ("uniform", of(length, |i| key.uniform(i as u64) * 2.0 - 1.0)),
        ("normal", normal(length)),
        ("pareto", of(length, |i| pareto(i as u64))),
    ]
}

/// Returns normally distributed values.
pub(super) fn normal(length: usize) -> Vec<f32> {
    let key = Key { seed: 3, step: 0, tensor: length as u32 };
    of(length, |i| key.normal(i as u64))
}

/// Returns values at the ends of the range of f32.
pub(super) fn extreme(length: usize) -> Vec<Named> {
    vec![
        ("zero", of(length, |_| 0.0)),
        ("minus zero", of(length, |_| -0.0)),
        ("largest", of(length, |i| if i % 3 == 0 { f32::MAX } else { f32::MIN })),
        ("nearly largest", of(length, |i| f32::from_bits(f32::MAX.to_bits() - i as u32))),
        ("subnormal", of(length, |i| f32::from_bits(i as u32 % 7))),
        ("tiny", of(length, |i| if i % 2 == 0 { 1e-38 } else { -3e-37 })),
        ("all exponents", of(length, |i| f32::from_bits(((i % 254) as u32) << 23 | 0x2a_aaaa))),
    ]
}

/// Returns 120 lengths, the longest of which are above two blocks where blocks are short.
pub(super) fn some_lengths() -> impl Iterator<Item = (usize, Key)> {
    (0..120u32).map(|case| {
        let key = Key { tensor: case, ..KEY };
        (key.below(0, 700) as usize, Key { step: 9, ..key })
    })
}

/// Returns bytes of every kind.
pub(super) fn any_bytes(key: Key, length: usize) -> Vec<u8> {
    (0..length).map(|i| key.word(i as u64) as u8).collect()
}

/// Returns numbers of every kind, NaN and infinities among them.
pub(super) fn any_numbers(key: Key, length: usize) -> Vec<f32> {
    of(length, |i| {
        let [bits, sort, exponent, _] = key.words(i as u64);
        match sort % 4 {
            0 => f32::from_bits(bits),
            1 => f32::from_bits(bits & 0x807f_ffff | (exponent % 254) << 23),
            _ => f32::from_bits(bits & 0x807f_ffff | (exponent % 60 + 90) << 23),
        }
    })
}

pub(super) fn encode(codec: &dyn Codec, values: &[f32], key: Key) -> (Vec<u8>, Finite) {
    let mut bytes = vec![0xaa; codec.encoded_len(values.len())];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    bytes.truncate(codec.frame_len(&bytes));
    (bytes, finite)
}

/// Encodes with feedback; returns the encoding, the new residual, and whether all was finite.
pub(super) fn feed(
    codec: &dyn Codec,
    values: &[f32],
    residual: &[f32],
    key: Key,
) -> (Vec<u8>, Vec<f32>, Finite) {
    let mut bytes = vec![0x55; codec.encoded_len(values.len())];
    let mut values = values.to_vec();
    let finite = codec.encode(Input::Feedback { values: &mut values, residual }, key, &mut bytes);
    bytes.truncate(codec.frame_len(&bytes));
    (bytes, values, finite)
}

pub(super) fn decode(codec: &dyn Codec, bytes: &[u8], length: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; length];
    codec.decode(bytes, Write::Set, &mut values).expect("an encoding of its own");
    values
}

pub(super) fn round_trip(codec: &dyn Codec, values: &[f32], key: Key) -> Vec<f32> {
    let (bytes, finite) = encode(codec, values, key);
    assert!(finite == Finite::Yes, "{codec}: reports {} values as not finite", values.len());
    decode(codec, &bytes, values.len())
}
