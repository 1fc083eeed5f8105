//! Every implementation gives the bits of the scalar one.

use proptest::prelude::*;
use thinwire_wire::random::Key;

use super::dispatch::Kernels;
use super::rans::{DecodeTable, Decoder, EncodeTable, Encoder, TOTAL, histogram, normalise};
use super::*;
use crate::coded::Coded;
use crate::dynamic8::Dynamic8;
use crate::float8::Float8;
use crate::ints::Ints;
use crate::least_squares::LeastSquares;
use crate::natural::Natural;
use crate::qsgd::{Levels, Norm};
use crate::signs::Signs;
use crate::tbq::Threshold;
use crate::vote::Vote;
use crate::{Choice, Codec, Finite, Input, Write};

/// Numbers of every kind; of NaN only one, for which of two is left is open.
fn number() -> impl Strategy<Value = f32> {
    let any = any::<u32>().prop_map(|bits| {
        let value = f32::from_bits(bits);
        if value.is_nan() { f32::NAN } else { value }
    });
    let special = [0.0, -0.0, f32::INFINITY, -f32::INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-45];
    prop_oneof![
        20 => -2.0..2.0f32,
        2 => any,
        2 => (-8..8i8).prop_map(|x| f32::from(x) * 0.5),
        2 => (0..4_000_000u32).prop_map(f32::from_bits),
        1 => prop::sample::select(special.to_vec()),
    ]
}

/// Two slices of equal length: mostly finite ones, so that blocks are.
fn pair() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    let finite = number().prop_map(|x| if x.abs() < 1e30 { x } else { 1.0 });
    let of = |number: BoxedStrategy<f32>| {
        prop::collection::vec((number.clone(), number), 0..900).prop_map(|v| v.into_iter().unzip())
    };
    prop_oneof![of(number().boxed()), of(finite.boxed())]
}

fn key() -> impl Strategy<Value = Key> {
    (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(seed, step, tensor)| Key {
        seed,
        step,
        tensor,
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Bits, all NaN being the same.
fn bits_but_nan(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

fn others() -> Vec<Kernels> {
    let mut kernels = Kernels::available();
    kernels.remove(0);
    kernels
}

type Encode<'a> = &'a dyn Fn(Kernels, Input<'_>, &mut [u8]) -> u64;
type Decode<'a> = &'a dyn Fn(Kernels, &[u8], Write, &mut [f32]);

/// Everything that encoding returns and writes, without feedback and with.
fn encodings(
    kernels: Kernels,
    (values, residual): &(Vec<f32>, Vec<f32>),
    run: Encode<'_>,
    len: usize,
) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut plain = vec![0xaa; len];
    let first = run(kernels, Input::Plain(values), &mut plain);
    let (mut values, mut fed) = (values.to_vec(), vec![0x55; len]);
    let second = run(kernels, Input::Feedback { values: &mut values, residual }, &mut fed);
    (first, plain, second, fed, bits(&values))
}

/// Encodes values to `len` bytes and decodes noise with all kernels.
fn agree(
    pair: &(Vec<f32>, Vec<f32>),
    noise: &[u8],
    len: usize,
    encode: Encode<'_>,
    decode: Decode<'_>,
) {
    let noise: Vec<u8> = noise.iter().copied().cycle().take(len).collect();
    let expected = encodings(Kernels::SCALAR, pair, encode, len);
    for kernels in others() {
        assert_eq!(encodings(kernels, pair, encode, len), expected, "{kernels:?}");
        for write in [Write::Set, Write::Add] {
            let (mut expected, mut found) = (pair.0.to_vec(), pair.0.to_vec());
            decode(Kernels::SCALAR, &noise, write, &mut expected);
            decode(kernels, &noise, write, &mut found);
            assert_eq!(bits_but_nan(&found), bits_but_nan(&expected), "{kernels:?}, {write:?}");
        }
    }
}

fn cast_agrees<F: FormatLanes>(pair: &(Vec<f32>, Vec<f32>), noise: &[u8]) {
    let encode: Encode<'_> =
        &|kernels, input, output| u64::from(kernels.cast_encode::<F>(input, output));
    let decode: Decode<'_> =
        &|kernels, encoded, write, values| kernels.cast_decode::<F>(encoded, write, values);
    agree(pair, noise, pair.0.len() * F::BYTES, encode, decode);
}

fn codes_agree<C: CodeLanes>(code: C, pair: &(Vec<f32>, Vec<f32>), noise: &[u8], key: Key) {
    let encode: Encode<'_> = &|kernels, input, output| {
        u64::from(kernels.code_encode(code, input, key, output) == Finite::Yes)
    };
    let decode: Decode<'_> =
        &|kernels, encoded, write, values| kernels.code_decode(code, encoded, write, values);
    agree(pair, noise, Coded(code).encoded_len(pair.0.len()), encode, decode);
}

proptest! {
    #[test]
    fn sums_agree((values, other) in pair(), factor in number()) {
        let run = |kernels: Kernels| {
            let (mut sum, mut scaled, mut fused) = (values.clone(), values.clone(), values.clone());
            kernels.add(&mut sum, &other);
            kernels.scale_copy(&mut scaled, &other, factor);
            kernels.add_scaled(&mut fused, &other, factor);
            let dot = kernels.dot(&values, &other);
            let all = [&sum[..], &scaled, &fused, &[dot]].map(bits_but_nan);
            (all, kernels.max_magnitude(&values))
        };
        for kernels in others() {
            prop_assert_eq!(run(kernels), run(Kernels::SCALAR), "{}", kernels.name());
        }
    }

    #[test]
    fn casts_agree(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600)) {
        cast_agrees::<F32>(&pair, &noise);
        cast_agrees::<F16>(&pair, &noise);
        cast_agrees::<BF16>(&pair, &noise);
    }

    #[test]
    fn codes_agree_with_and_without_random_numbers(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600), key in key()) {
        let norms = [Norm::Max, Norm::Length, Norm::Clipped(1.0)];
        codes_agree(Ints::<8, false>, &pair, &noise, key);
        codes_agree(Ints::<8, true>, &pair, &noise, key);
        codes_agree(Ints::<4, false>, &pair, &noise, key);
        codes_agree(Ints::<4, true>, &pair, &noise, key);
        codes_agree(Ints::<3, false>, &pair, &noise, key);
        codes_agree(Ints::<3, true>, &pair, &noise, key);
        codes_agree(LeastSquares::<4>, &pair, &noise, key);
        codes_agree(LeastSquares::<3>, &pair, &noise, key);
        codes_agree(Signs::<1>, &pair, &noise, key);
        codes_agree(Signs::<2>, &pair, &noise, key);
        codes_agree(Vote, &pair, &noise, key);
        for code in [0.5, 1e-30, 1e30].map(|tau| Threshold { tau }) {
            codes_agree(code, &pair, &noise, key);
        }
        for bits in 2..=8 {
            for code in norms.map(|norm| Levels { bits, norm }) {
                codes_agree(code, &pair, &noise, key);
            }
        }
        codes_agree(Natural, &pair, &noise, key);
        codes_agree(Float8::<3>, &pair, &noise, key);
        codes_agree(Float8::<2>, &pair, &noise, key);
        codes_agree(Dynamic8, &pair, &noise, key);
        for name in ["intsgd", "intsgd:16"] {
            let Ok(Choice::Integers(integers)) = Choice::parse(name) else { unreachable!() };
            codes_agree(integers, &pair, &noise, key);
        }
    }

    #[test]
    fn symbols_read_back_and_kernels_agree(
        symbols in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..2000),
            prop::collection::vec(prop_oneof![30 => Just(128_u8), 1 => 120..136_u8], 0..2000),
        ],
        room in 0..6000_usize,
    ) {
        let frequencies = normalise(&histogram(&symbols));
        prop_assert_eq!(frequencies.iter().sum::<u32>(), TOTAL);
        let (to, from) = (EncodeTable::new(&frequencies), DecodeTable::new(&frequencies).unwrap());
        let encode = |kernels: Kernels| {
            let mut output = vec![0; room];
            let mut coder = Encoder::new(&mut output);
            kernels.rans_encode(&mut coder, &to, &symbols);
            let (states, at, is_full) = (coder.states, coder.at, coder.is_full);
            (is_full, (!is_full).then(|| (states, output.split_off(at))))
        };
        let decode = |kernels: Kernels, states, words: &[u8]| {
            let mut symbols = vec![0; symbols.len()];
            let mut coder = Decoder::new(states, words, words.len()).unwrap();
            kernels.rans_decode(&mut coder, &from, &mut symbols);
            (coder.is_finished(), symbols)
        };
        for kernels in Kernels::available() {
            let (is_full, encoded) = encode(kernels);
            prop_assert_eq!(&(is_full, encoded.clone()), &encode(Kernels::SCALAR));
            let Some((states, words)) = encoded else { continue };
            prop_assert_eq!(decode(kernels, states, &words), (true, symbols.clone()));
            let short = &words[..words.len().saturating_sub(2)];
            if short.len() < words.len() {
                prop_assert!(!decode(kernels, states, short).0);
            }
        }
    }

    #[test]
    fn random_numbers_agree(key in key(), group in 0..u64::MAX / 16) {
        for kernels in others() {
            prop_assert_eq!(kernels.random(key, group), Kernels::SCALAR.random(key, group));
        }
    }

    #[test]
    fn candidates_agree((values, residual) in pair(), first in 0..u32::MAX / 2, threshold in prop_oneof![1..u32::MAX, Just(1.0f32.to_bits()), Just(1)]) {
        let run = |kernels: Kernels, mut values: Vec<f32>, feedback: bool| {
            let mut found = vec![Candidate { index: 7, bits: 7 }];
            let input = if feedback {
                Input::Feedback { values: &mut values, residual: &residual }
            } else {
                Input::Plain(&values)
            };
            kernels.collect(input, first, threshold.min(1 << 31), &mut found);
            (found, bits(&values))
        };
        for kernels in others() {
            for feedback in [false, true] {
                let expected = run(Kernels::SCALAR, values.clone(), feedback);
                prop_assert_eq!(run(kernels, values.clone(), feedback), expected, "{}", kernels.name());
            }
        }
    }
}

#[test]
fn the_table_in_use_is_the_best_one() {
    let names: Vec<_> = Kernels::available().iter().map(|kernels| kernels.name()).collect();
    assert_eq!(names.last().copied(), Some(name()));
}
