//! What every codec in the table must do, from nothing but what it declares.

use std::sync::Arc;

use proptest::prelude::*;
use thinwire_codec::{Bound, Choice, Codec, Error, Exchange, Finite, Input, Kind, Write, all};
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 11, step: 5, tensor: 2 };

fn codecs() -> Vec<Arc<dyn Codec>> {
    let bytes = |choice| match choice {
        Choice::Bytes(codec) => Some(codec),
        Choice::LowRank(_) => None,
    };
    all().into_iter().filter_map(bytes).collect()
}

/// Rounding is random, and right in the mean.
fn is_unbiased(codec: &dyn Codec) -> bool {
    matches!(codec.bound(1), Bound::Variance(_))
}

fn encode(codec: &dyn Codec, values: &[f32], key: Key) -> (Vec<u8>, Finite) {
    let mut bytes = vec![0xaa; codec.encoded_len(values.len())];
    let finite = codec.encode(Input::Plain(values), key, &mut bytes);
    (bytes, finite)
}

/// Encoding, new residual, and whether all was finite.
fn feed(
    codec: &dyn Codec,
    values: &[f32],
    residual: &[f32],
    key: Key,
) -> (Vec<u8>, Vec<f32>, Finite) {
    let mut bytes = vec![0x55; codec.encoded_len(values.len())];
    let mut values = values.to_vec();
    let finite = codec.encode(Input::Feedback { values: &mut values, residual }, key, &mut bytes);
    (bytes, values, finite)
}

fn decode(codec: &dyn Codec, bytes: &[u8], length: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; length];
    codec.decode(bytes, Write::Set, &mut values).unwrap();
    values
}

fn round_trip(codec: &dyn Codec, values: &[f32], key: Key) -> Vec<f32> {
    let (bytes, finite) = encode(codec, values, key);
    assert_eq!(finite, Finite::Yes, "{codec}");
    decode(codec, &bytes, values.len())
}

fn lengths(codec: &dyn Codec) -> Vec<usize> {
    let block = codec.block();
    vec![0, 1, 7, 8, 9, 63, 64, 65, block - 1, block, block + 1, 3 * block + 5, 1009]
}

/// Values of every shape, below 100 in magnitude and for the most part above 1e-3.
fn ordinary(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    let key = Key { seed: 3, step: 0, tensor: length as u32 };
    vec![
        ("one hot", of(&|i| if i == length / 2 { -3.0 } else { 0.0 })),
        ("flat", of(&|_| 0.37)),
        ("alternating", of(&|i| if i % 2 == 0 { 1.7 } else { -1.7 })),
        ("two sizes", of(&|i| if i % 5 == 0 { 10.0 } else { 0.6 })),
        ("ramp", of(&|i| (i as f32 - length as f32 / 2.0) / (length as f32))),
        ("uniform", of(&|i| key.uniform(i as u64) * 2.0 - 1.0)),
        ("normal", of(&|i| key.normal(i as u64))),
        (
            "pareto",
            of(&|i| (0.01 / (1.01 - key.uniform(i as u64))) * key.normal(i as u64).signum()),
        ),
    ]
}

/// Values at the ends of what f32 can hold.
fn extreme(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    vec![
        ("zero", of(&|_| 0.0)),
        ("minus zero", of(&|_| -0.0)),
        ("largest", of(&|i| if i % 3 == 0 { f32::MAX } else { f32::MIN })),
        ("largest of int8", of(&|i| f32::from_bits(f32::MAX.to_bits() - i as u32))),
        ("subnormal", of(&|i| f32::from_bits(i as u32 % 7))),
        ("tiny", of(&|i| if i % 2 == 0 { 1e-38 } else { -3e-37 })),
        ("all exponents", of(&|i| f32::from_bits(((i % 254) as u32) << 23 | 0x2a_aaaa))),
    ]
}

fn squared(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|x| x * x).sum()
}

fn difference(a: &[f32], b: &[f32]) -> f64 {
    squared(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_length_is_exact_and_every_byte_is_written() {
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            for (name, values) in ordinary(length) {
                let (bytes, _) = encode(codec.as_ref(), &values, KEY);
                let (again, ..) = feed(codec.as_ref(), &values, &vec![0.0; length], KEY);
                assert_eq!(bytes, again, "{codec} {name} {length}");
            }
        }
    }
}

#[test]
fn other_lengths_are_refused_with_both_numbers() {
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            let right = codec.encoded_len(length);
            for wrong in [right + 1, right.wrapping_sub(1), right + 4, 0] {
                if wrong == right || wrong == usize::MAX {
                    continue;
                }
                let error: Error =
                    codec.decode(&vec![0; wrong], Write::Add, &mut vec![0.0; length]).unwrap_err();
                assert_eq!(error.kind(), Kind::Length);
                let expected =
                    format!("found {wrong} bytes, expected {right} for {length} elements");
                assert!(error.to_string().ends_with(&expected), "{error}");
            }
        }
    }
}

#[test]
fn encoding_what_was_decoded_changes_nothing() {
    for codec in codecs().iter().filter(|codec| codec.claims().idempotent) {
        for length in lengths(codec.as_ref()) {
            for (name, values) in ordinary(length).into_iter().chain(extreme(length)) {
                let (bytes, finite) = encode(codec.as_ref(), &values, KEY);
                if finite == Finite::No {
                    continue;
                }
                let decoded = decode(codec.as_ref(), &bytes, length);
                let (again, _) = encode(codec.as_ref(), &decoded, KEY);
                assert_eq!(
                    decode(codec.as_ref(), &again, length),
                    decoded,
                    "{codec} {name} {length}"
                );
                if name != "minus zero" {
                    assert!(again == bytes, "{codec} {name} {length}");
                }
            }
        }
    }
}

#[test]
fn what_is_sent_and_what_is_left_is_what_there_was() {
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            for (name, values) in ordinary(length).into_iter().chain(extreme(length)) {
                let residual: Vec<f32> = values.iter().rev().map(|x| x * 0.3).collect();
                let sum: Vec<f32> = values.iter().zip(&residual).map(|(x, e)| x + e).collect();
                let (bytes, left, finite) = feed(codec.as_ref(), &values, &residual, KEY);
                let (plain, same) = encode(codec.as_ref(), &sum, KEY);
                assert!(bytes == plain && finite == same, "{codec} {name} {length}");
                if finite == Finite::No {
                    continue;
                }
                let sent = decode(codec.as_ref(), &bytes, length);
                for at in 0..length {
                    let (found, expected) = (sent[at] + left[at], sum[at]);
                    let larger = sent[at].abs().max(expected.abs());
                    let most = if codec.claims().exact { 0.0 } else { larger * 2.0f32.powi(-23) };
                    assert!(
                        (found - expected).abs() <= most,
                        "{codec} {name} {at} of {length}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn over_many_steps_nothing_is_lost() {
    let steps = 50;
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            let (mut residual, mut sent) = (vec![0.0; length], vec![0.0f64; length]);
            let mut total = vec![0.0f64; length];
            for step in 0..steps {
                let key = Key { step, ..KEY };
                let gradient: Vec<f32> = (0..length as u64).map(|i| key.normal(i)).collect();
                let (bytes, left, finite) = feed(codec.as_ref(), &gradient, &residual, key);
                assert_eq!(finite, Finite::Yes);
                residual = left;
                for (sum, x) in sent.iter_mut().zip(decode(codec.as_ref(), &bytes, length)) {
                    *sum += f64::from(x);
                }
                total.iter_mut().zip(&gradient).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            for at in 0..length {
                let error = (sent[at] + f64::from(residual[at]) - total[at]).abs();
                assert!(error < steps as f64 * 1e-5, "{codec} {at} of {length}: {error}");
            }
        }
    }
}

#[test]
fn the_residual_is_as_much_shorter_as_the_codec_declares() {
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            let Bound::Contraction(declared) = codec.bound(length) else { continue };
            assert!((0.0..=1.0).contains(&declared), "{codec} {length}: {declared}");
            let ordinary = ordinary(length).into_iter().map(|input| (declared, input));
            let extreme = extreme(length).into_iter().map(|input| (0.0, input));
            for (contraction, (name, values)) in ordinary.chain(extreme) {
                let (bytes, finite) = encode(codec.as_ref(), &values, KEY);
                if finite == Finite::No {
                    continue;
                }
                let error = difference(&decode(codec.as_ref(), &bytes, length), &values);
                let whole = squared(values.iter().map(|x| f64::from(*x)));
                // Scales have 17 digits.
                let most = (1.0 - contraction) * whole * (1.0 + 1e-4) + whole * 1e-9;
                assert!(error <= most, "{codec} {name} {length}: {error} {most}");
            }
        }
    }
}

/// No value of the same block would have been nearer: truncation does not pass.
#[test]
fn rounding_is_to_the_nearest() {
    for codec in codecs().into_iter().filter(|codec| codec.claims().nearest) {
        let length = codec.block().max(64);
        for (name, values) in ordinary(length) {
            let decoded = round_trip(codec.as_ref(), &values, KEY);
            for (x, own) in values.iter().zip(&decoded) {
                let best = decoded.iter().map(|other| (x - other).abs()).fold(f32::MAX, f32::min);
                assert!((x - own).abs() <= best * 1.001, "{codec} {name}: {x} became {own}");
            }
        }
    }
}

#[test]
fn random_rounding_is_right_in_the_mean() {
    let (rounds, length) = (3000, 300);
    for codec in codecs().iter().filter(|codec| is_unbiased(codec.as_ref())) {
        for (name, values) in ordinary(length) {
            let (mut sum, mut squares) = (vec![0.0f64; length], vec![0.0f64; length]);
            let mut largest = 0.0f64;
            for seed in 0..rounds {
                let decoded = round_trip(codec.as_ref(), &values, Key { seed, ..KEY });
                for at in 0..length {
                    let error = f64::from(decoded[at]) - f64::from(values[at]);
                    sum[at] += error;
                    squares[at] += error * error;
                    largest = largest.max(error.abs());
                }
            }
            // Scales have 17 digits; and of a rare event there may be none, or one too many.
            let digits = |x: &f32| 1e-5 * f64::from(x.abs()) * rounds as f64;
            let rest: Vec<f64> = values.iter().map(|x| digits(x) + largest).collect();
            for at in 0..length {
                let z = sum[at].abs() / (squares[at].sqrt() + rest[at] + f64::MIN_POSITIVE);
                assert!(z < 5.0, "{codec} {name} {at}: z = {z}");
            }
            let deviation = squares.iter().sum::<f64>().sqrt() + rest.iter().sum::<f64>();
            let z = sum.iter().sum::<f64>().abs() / deviation;
            assert!(z < 5.0, "{codec} {name}: z = {z}");
        }
    }
}

/// What each rank rounds, over the error of the mean of 16: 16 if they are independent, 1 if all
/// roll the same dice.
#[test]
fn ranks_steps_and_tensors_round_independently() {
    let length = 4096;
    let (_, values) = ordinary(length).remove(6);
    let keys: [fn(u32) -> Key; 4] = [
        |rank| KEY.for_rank(rank),
        |step| Key { step: u64::from(step), ..KEY },
        |tensor| Key { tensor, ..KEY },
        |seed| Key { seed: u64::from(seed), ..KEY },
    ];
    for codec in codecs().iter().filter(|codec| is_unbiased(codec.as_ref())) {
        for key in keys {
            let (mut mean, mut alone) = (vec![0.0; length], 0.0);
            for rank in 0..16 {
                let decoded = round_trip(codec.as_ref(), &values, key(rank));
                alone += difference(&decoded, &values) / 16.0;
                mean.iter_mut().zip(&decoded).for_each(|(sum, x)| *sum += x / 16.0);
            }
            let gain = alone / difference(&mean, &values);
            assert!((12.0..21.0).contains(&gain), "{codec}: {gain}");
        }
    }
}

/// Elements of one encoding roll dice of their own: errors of neighbours, of groups and of blocks
/// do not go together.
#[test]
fn elements_round_independently() {
    let values = vec![0.123_45f32; 8192];
    for codec in codecs().iter().filter(|codec| is_unbiased(codec.as_ref())) {
        let mut values = values.clone();
        values.iter_mut().step_by(codec.block()).for_each(|x| *x = 1.0);
        let decoded = round_trip(codec.as_ref(), &values, KEY);
        let error = |at: usize| f64::from(decoded[at]) - f64::from(values[at]);
        for distance in [1, 2, 3, 4, 8, 16, 17, 32, 64, 128, 256, 512] {
            let (mut product, mut square) = (0.0, 0.0);
            for at in 0..values.len() - distance {
                product += error(at) * error(at + distance);
                square += error(at) * error(at);
            }
            let correlation = product / square;
            // Rounding up and down are not equally likely, but the mean error is zero.
            assert!(correlation.abs() < 5.0 / 90.0, "{codec} {distance}: {correlation}");
        }
    }
}

#[test]
fn nothing_in_nothing_out() {
    for codec in codecs().iter().filter(|codec| codec.claims().zero) {
        for length in lengths(codec.as_ref()) {
            for zero in [0.0, -0.0] {
                let values = vec![zero; length];
                let (bytes, left, finite) = feed(codec.as_ref(), &values, &values, KEY);
                assert_eq!(finite, Finite::Yes);
                assert!(left.iter().all(|x| *x == 0.0), "{codec} {length}");
                assert!(
                    decode(codec.as_ref(), &bytes, length).iter().all(|x| *x == 0.0),
                    "{codec}"
                );
            }
        }
    }
}

#[test]
fn one_number_that_is_none_is_noticed_wherever_it_is() {
    for codec in codecs() {
        for length in lengths(codec.as_ref()) {
            for at in [0, 1, length / 2, length.saturating_sub(2), length.saturating_sub(1)] {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    if at >= length {
                        continue;
                    }
                    let (good, mut values) = (vec![1.0; length], vec![0.5; length]);
                    values[at] = bad;
                    let plain = encode(codec.as_ref(), &values, KEY).1;
                    let (bytes, _, in_values) = feed(codec.as_ref(), &values, &good, KEY);
                    let in_residual = feed(codec.as_ref(), &good, &values, KEY).2;
                    let found = [plain, in_values, in_residual];
                    assert_eq!(found, [Finite::No; 3], "{codec} {bad} at {at} of {length}");
                    let _ = codec.decode(&bytes, Write::Add, &mut values);
                }
            }
        }
    }
}

#[test]
fn ranges_that_begin_at_a_block_are_encoded_alone() {
    for codec in codecs().into_iter().filter(|codec| codec.claims().separable) {
        for (name, values) in ordinary(5 * codec.block() + 77) {
            let (first, second) = values.split_at(2 * codec.block());
            let (mut parts, _) = encode(codec.as_ref(), first, KEY);
            parts.extend(encode(codec.as_ref(), second, KEY).0);
            assert_eq!(parts, encode(codec.as_ref(), &values, KEY).0, "{codec} {name}");
        }
    }
}

#[test]
fn summable_codecs_are_linear_but_for_rounding() {
    for codec in codecs().iter().filter(|codec| codec.exchange() == Exchange::Summable) {
        for (name, x) in ordinary(1009) {
            for (other, y) in ordinary(1009) {
                let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
                let all = [&x, &y, &sum].map(|values| round_trip(codec.as_ref(), values, KEY));
                for at in 0..sum.len() {
                    let error = (all[0][at] + all[1][at] - all[2][at]).abs();
                    let most = (x[at].abs() + y[at].abs()) / 128.0;
                    assert!(error <= most, "{codec} {name} + {other} at {at}");
                }
            }
            let twice: Vec<f32> = x.iter().map(|x| x * 2.0).collect();
            let decoded: Vec<f32> =
                round_trip(codec.as_ref(), &x, KEY).iter().map(|x| x * 2.0).collect();
            assert_eq!(
                bits(&round_trip(codec.as_ref(), &twice, KEY)),
                bits(&decoded),
                "{codec} {name}"
            );
        }
    }
}

proptest! {
    #[test]
    fn any_numbers_decode_to_finite_ones_or_are_reported(
        raw in prop::collection::vec(prop_oneof![any::<u32>(), any::<f32>().prop_map(f32::to_bits)], 0..600),
        seed: u64,
    ) {
        let values: Vec<f32> = raw.into_iter().map(f32::from_bits).collect();
        for codec in codecs() {
            let (bytes, finite) = encode(codec.as_ref(), &values, Key { seed, ..KEY });
            let decoded = decode(codec.as_ref(), &bytes, values.len());
            if finite == Finite::Yes {
                prop_assert!(decoded.iter().all(|x| x.is_finite()), "{}", codec);
            }
            let tame: Vec<f32> = values.iter().map(|x| if x.abs() < 6e4 { *x } else { 1.0 }).collect();
            prop_assert_eq!(encode(codec.as_ref(), &tame, KEY).1, Finite::Yes, "{}", codec);
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000), length in 0..700usize, fit: bool) {
        for codec in codecs() {
            let mut bytes = bytes.clone();
            if fit {
                bytes.resize(codec.encoded_len(length), 0x5a);
            }
            let start: Vec<f32> = (0..length).map(|i| i as f32 - 50.0).collect();
            let (mut set, mut added) = (start.clone(), start.clone());
            let result = codec.decode(&bytes, Write::Set, &mut set);
            prop_assert_eq!(&result, &codec.decode(&bytes, Write::Add, &mut added));
            prop_assert!(fit || result.is_err() || bytes.len() == codec.encoded_len(length));
            if result.is_ok() {
                for at in 0..length {
                    let expected = start[at] + set[at];
                    prop_assert!(added[at] == expected || added[at].is_nan() && expected.is_nan(), "{} {}", codec, at);
                }
            }
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(values in prop::collection::vec(-10.0..10.0f32, 0..600), seed: u64) {
        let key = Key { seed, ..KEY };
        for codec in codecs() {
            prop_assert_eq!(encode(codec.as_ref(), &values, key), encode(codec.as_ref(), &values, key));
        }
    }
}
