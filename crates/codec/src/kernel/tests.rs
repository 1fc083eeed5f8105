//! Every implementation gives the bits of the scalar one.

use proptest::prelude::*;

use super::*;
use crate::float8::Float8;
use crate::qsgd::Norm;

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

fn others() -> Vec<&'static Kernels> {
    let mut kernels = available();
    kernels.remove(0);
    kernels
}

type Loop<'a> = &'a dyn Fn(&Kernels, Input<'_>, &mut [u8]) -> u64;

/// Everything that encoding returns and writes, without feedback and with.
fn encodings(
    kernels: &Kernels,
    values: &[f32],
    residual: &[f32],
    run: Loop<'_>,
    len: usize,
) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut plain = vec![0xaa; len];
    let first = run(kernels, Input::Plain(values), &mut plain);
    let (mut values, mut fed) = (values.to_vec(), vec![0x55; len]);
    let second = run(kernels, Input::Feedback { values: &mut values, residual }, &mut fed);
    (first, plain, second, fed, bits(&values))
}

fn cast_agrees<F: Format>(
    pick: fn(&Kernels) -> &Cast,
    (values, residual): &(Vec<f32>, Vec<f32>),
    noise: &[u8],
) {
    let len = values.len() * F::BYTES;
    let run: Loop<'_> = &|kernels, input, output| u64::from((pick(kernels).encode)(input, output));
    let expected = encodings(&scalar::KERNELS, values, residual, run, len);
    let noise: Vec<u8> = noise.iter().copied().cycle().take(len).collect();
    for kernels in others() {
        assert_eq!(encodings(kernels, values, residual, run, len), expected, "{}", kernels.name);
        decode_agrees(pick(&scalar::KERNELS).decode, pick(kernels).decode, &noise, values);
    }
}

fn levels_agree<Q: Levels>(
    pick: fn(&Kernels) -> &Quantiser,
    (values, residual): &(Vec<f32>, Vec<f32>),
    noise: &[u8],
    key: Key,
) {
    let len = Q::encoded_len(values.len());
    let noise: Vec<u8> = noise.iter().copied().cycle().take(len).collect();
    for key in [None, Some(key)] {
        let run: Loop<'_> = &|kernels, input, output| {
            u64::from((pick(kernels).encode)(input, key, output) == Finite::Yes)
        };
        let expected = encodings(&scalar::KERNELS, values, residual, run, len);
        for kernels in others() {
            assert_eq!(
                encodings(kernels, values, residual, run, len),
                expected,
                "{}",
                kernels.name
            );
            decode_agrees(pick(&scalar::KERNELS).decode, pick(kernels).decode, &noise, values);
        }
    }
}

fn signs_agree<S: Signs>(
    pick: fn(&Kernels) -> &Signer,
    (values, residual): &(Vec<f32>, Vec<f32>),
    noise: &[u8],
) {
    let len = S::encoded_len(values.len());
    let noise: Vec<u8> = noise.iter().copied().cycle().take(len).collect();
    let run: Loop<'_> =
        &|kernels, input, output| u64::from((pick(kernels).encode)(input, output) == Finite::Yes);
    let expected = encodings(&scalar::KERNELS, values, residual, run, len);
    for kernels in others() {
        assert_eq!(encodings(kernels, values, residual, run, len), expected, "{}", kernels.name);
        decode_agrees(pick(&scalar::KERNELS).decode, pick(kernels).decode, &noise, values);
    }
}

fn codes_agree<C: Code>(
    code: C,
    pick: fn(&Kernels) -> &Coder<C>,
    (values, residual): &(Vec<f32>, Vec<f32>),
    noise: &[u8],
    key: Key,
) {
    let rest = match values.len() % 128 {
        0 => 0,
        rest => block_len(code, rest),
    };
    let len = values.len() / 128 * block_len(code, 128) + rest;
    let noise: Vec<u8> = noise.iter().copied().cycle().take(len).collect();
    let run: Loop<'_> = &|kernels, input, output| {
        u64::from((pick(kernels).encode)(code, input, key, output) == Finite::Yes)
    };
    let expected = encodings(&scalar::KERNELS, values, residual, run, len);
    for kernels in others() {
        let found = encodings(kernels, values, residual, run, len);
        assert_eq!(found, expected, "{code}, {}", kernels.name);
        let decode = |kernels: &Kernels, encoded: &[u8], write, values: &mut [f32]| {
            (pick(kernels).decode)(code, encoded, write, values);
        };
        for write in [Write::Set, Write::Add] {
            let (mut expected, mut found) = (values.to_vec(), values.to_vec());
            decode(&scalar::KERNELS, &noise, write, &mut expected);
            decode(kernels, &noise, write, &mut found);
            assert_eq!(bits_but_nan(&found), bits_but_nan(&expected), "{code}, {write:?}");
        }
    }
}

type Decode = fn(&[u8], Write, &mut [f32]);

fn decode_agrees(scalar: Decode, other: Decode, encoded: &[u8], values: &[f32]) {
    for write in [Write::Set, Write::Add] {
        let (mut expected, mut found) = (values.to_vec(), values.to_vec());
        scalar(encoded, write, &mut expected);
        other(encoded, write, &mut found);
        assert_eq!(bits_but_nan(&found), bits_but_nan(&expected), "{write:?}");
    }
}

proptest! {
    #[test]
    fn magnitudes_agree((values, _) in pair(), factor in 0.0..2.0f32) {
        let expected = bits_but_nan(&[(scalar::KERNELS.magnitudes)(&values, factor)]);
        for kernels in others() {
            let found = bits_but_nan(&[(kernels.magnitudes)(&values, factor)]);
            prop_assert_eq!(&found, &expected, "{}", kernels.name);
        }
    }
}

proptest! {
    #[test]
    fn sums_agree((values, other) in pair(), factor in number()) {
        let run = |kernels: &Kernels| {
            let (mut sum, mut scaled, mut fused) = (values.clone(), values.clone(), values.clone());
            (kernels.add)(&mut sum, &other);
            (kernels.scale_copy)(&mut scaled, &other, factor);
            (kernels.add_scaled)(&mut fused, &other, factor);
            let dot = (kernels.dot)(&values, &other);
            let all = [&sum[..], &scaled, &fused, &[dot]].map(bits_but_nan);
            (all, (kernels.largest)(&values))
        };
        for kernels in others() {
            prop_assert_eq!(run(kernels), run(&scalar::KERNELS), "{}", kernels.name);
        }
    }

    #[test]
    fn casts_agree(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600)) {
        cast_agrees::<F32>(|kernels| &kernels.f32, &pair, &noise);
        cast_agrees::<F16>(|kernels| &kernels.f16, &pair, &noise);
        cast_agrees::<BF16>(|kernels| &kernels.bf16, &pair, &noise);
    }

    #[test]
    fn levels_agree_to_nearest_and_stochastic(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600), key in key()) {
        levels_agree::<Int8>(|kernels| &kernels.int8, &pair, &noise, key);
        levels_agree::<Int4>(|kernels| &kernels.int4, &pair, &noise, key);
        levels_agree::<Int3>(|kernels| &kernels.int3, &pair, &noise, key);
    }

    #[test]
    fn signs_agree_with_one_bit_and_two(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600)) {
        signs_agree::<Int2>(|kernels| &kernels.int2, &pair, &noise);
        signs_agree::<OneBit>(|kernels| &kernels.onebit, &pair, &noise);
    }

    #[test]
    fn codes_agree_with_and_without_random_numbers(pair in pair(), noise in prop::collection::vec(any::<u8>(), 1..600), key in key()) {
        let norms = [Norm::Largest, Norm::Length, Norm::Clipped(1.0)];
        codes_agree(Vote, |kernels| &kernels.vote, &pair, &noise, key);
        for code in [0.5, 1e-30, 1e30].map(|tau| Threshold { tau }) {
            codes_agree(code, |kernels| &kernels.threshold, &pair, &noise, key);
        }
        for bits in 2..=8 {
            for code in norms.map(|norm| RandomLevels { bits, norm }) {
                codes_agree(code, |kernels| &kernels.levels, &pair, &noise, key);
            }
        }
        codes_agree(Natural, |kernels| &kernels.natural, &pair, &noise, key);
        codes_agree(Float8, |kernels| &kernels.e4m3, &pair, &noise, key);
        codes_agree(Float8, |kernels| &kernels.e5m2, &pair, &noise, key);
        codes_agree(Dynamic8, |kernels| &kernels.dynamic8, &pair, &noise, key);
    }

    #[test]
    fn random_numbers_agree(key in key(), group in 0..u64::MAX / 16) {
        for kernels in others() {
            prop_assert_eq!((kernels.random)(key, group), (scalar::KERNELS.random)(key, group));
        }
    }

    #[test]
    fn candidates_agree((values, residual) in pair(), first in 0..u32::MAX / 2, threshold in prop_oneof![1..u32::MAX, Just(1.0f32.to_bits()), Just(1)]) {
        let run = |kernels: &Kernels, mut values: Vec<f32>, feedback: bool| {
            let mut found = vec![Candidate { index: 7, bits: 7 }];
            let input = if feedback {
                Input::Feedback { values: &mut values, residual: &residual }
            } else {
                Input::Plain(&values)
            };
            (kernels.collect)(input, first, threshold.min(1 << 31), &mut found);
            (found, bits(&values))
        };
        for kernels in others() {
            for feedback in [false, true] {
                let expected = run(&scalar::KERNELS, values.clone(), feedback);
                prop_assert_eq!(run(kernels, values.clone(), feedback), expected, "{}", kernels.name);
            }
        }
    }
}

#[test]
fn the_table_in_use_is_the_best_one() {
    let names: Vec<_> = available().iter().map(|kernels| kernels.name).collect();
    assert_eq!(names.last().copied(), Some(name()));
}
