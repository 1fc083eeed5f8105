//! Laws of single codecs.

use std::sync::Arc;

use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_wire::random::{Key, permutation};

const KEY: Key = Key { seed: 21, step: 3, tensor: 7 };

fn codec(name: &str) -> Arc<dyn Codec> {
    let Ok(Choice::Bytes(codec)) = Choice::parse(name) else { panic!("{name}") };
    codec
}

fn encode(codec: &dyn Codec, values: &[f32], key: Key) -> Vec<u8> {
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    assert_eq!(codec.encode(Input::Plain(values), key, &mut bytes), Finite::Yes);
    bytes.truncate(codec.frame_len(&bytes));
    bytes
}

fn round_trip(name: &str, values: &[f32], key: Key) -> Vec<f32> {
    let (codec, mut decoded) = (codec(name), vec![f32::NAN; values.len()]);
    codec.decode(&encode(codec.as_ref(), values, key), Write::Set, &mut decoded).unwrap();
    decoded
}

fn normal(length: usize, seed: u64) -> Vec<f32> {
    (0..length as u64).map(|i| Key { seed, ..KEY }.normal(i)).collect()
}

fn squared(values: impl IntoIterator<Item = f32>) -> f64 {
    values.into_iter().map(|x| f64::from(x).powi(2)).sum()
}

#[test]
fn the_error_of_terngrad_is_what_its_largest_value_says() {
    let values = normal(128, 1);
    let largest = values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let sum: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
    let expected = f64::from(largest) * sum - squared(values.iter().copied());
    let rounds = 4000;
    let total: f64 = (0..rounds)
        .map(|seed| {
            let decoded = round_trip("terngrad", &values, Key { seed, ..KEY });
            squared(decoded.iter().zip(&values).map(|(a, b)| a - b))
        })
        .sum();
    let found = total / rounds as f64;
    assert!((found / expected - 1.0).abs() < 0.02, "{found}, expected {expected}");
}

#[test]
fn clipping_cuts_off_what_is_above_and_nothing_else() {
    let mut values = vec![0.5; 128];
    values[9] = -100.0;
    let decoded = round_trip("terngrad:2.5", &values, KEY);
    let most = 2.5 * (squared(values.iter().copied()) / 128.0).sqrt() as f32;
    assert!((decoded[9] + most).abs() < 1e-3 * most);
    assert!(decoded.iter().all(|x| *x == 0.0 || x.abs() == decoded[9].abs()));
}

#[test]
fn qsgd_of_the_largest_rounds_as_the_integers_do() {
    let values = normal(1000, 2);
    for (one, other) in [("qsgd:3", "int3:stochastic"), ("qsgd:4", "int4:stochastic")] {
        assert_eq!(round_trip(one, &values, KEY), round_trip(other, &values, KEY));
    }
}

#[test]
fn a_level_of_qsgd_is_next_to_the_value() {
    let values = normal(1000, 3);
    for (block, decoded) in
        values.chunks(128).zip(round_trip("qsgd:4:l2", &values, KEY).chunks(128))
    {
        let step = squared(block.iter().copied()).sqrt() / 7.0;
        for (x, y) in block.iter().zip(decoded) {
            assert!(f64::from((x - y).abs()) < step * 1.0001, "{x} became {y}, step {step}");
        }
    }
}

#[test]
fn powers_of_two_stay_and_others_at_most_double_or_halve() {
    let powers: Vec<f32> = (-100..=26).flat_map(|e| [2.0f32.powi(e), -(2.0f32.powi(e))]).collect();
    for seed in 0..50 {
        let key = Key { seed, ..KEY };
        assert_eq!(round_trip("natural", &powers, key), powers);
        let values = normal(500, seed);
        for (x, y) in values.iter().zip(round_trip("natural", &values, key)) {
            assert!((0.5..=2.0).contains(&(y / x)) && y.abs().log2().fract() == 0.0, "{x} {y}");
        }
    }
}

#[test]
fn a_vote_hears_neither_volume_nor_order() {
    let ranks: Vec<_> = (0..5).map(|rank| normal(300, rank)).collect();
    let vote = |order: &[u32], scale: f32| {
        let mut sum = vec![0.0; 300];
        for rank in order {
            let values: Vec<f32> = ranks[*rank as usize].iter().map(|x| x * scale).collect();
            codec("vote")
                .decode(&encode(codec("vote").as_ref(), &values, KEY), Write::Add, &mut sum)
                .unwrap();
        }
        round_trip("vote", &sum, KEY)
    };
    let expected = vote(&[0, 1, 2, 3, 4], 1.0);
    for scale in [1e-20, 0.3, 1e20] {
        assert_eq!(vote(&permutation(KEY, 5), scale), expected);
    }
    for (at, result) in expected.iter().enumerate() {
        let positive = ranks.iter().filter(|values| values[at] >= 0.0).count();
        assert_eq!(*result, if positive >= 3 { 1.0 } else { -1.0 });
    }
    assert_eq!(round_trip("vote", &[0.0, -0.0], KEY), [1.0, 1.0]);
}

#[test]
fn random_elements_are_drawn_once_each_and_all_equally_often() {
    for (name, length, expected) in
        [("randomk:0.25", 1000, 250), ("randomk:0.1:block", 12_800, 1280), ("randomk:1", 77, 77)]
    {
        let rounds = 600;
        let mut counts = vec![0u32; length];
        for step in 0..rounds {
            let decoded = round_trip(name, &vec![1.0; length], Key { step, ..KEY });
            assert_eq!(decoded.iter().sum::<f32>(), expected as f32, "{name}");
            counts.iter_mut().zip(&decoded).for_each(|(count, x)| *count += *x as u32);
        }
        let mean = rounds as f64 * f64::from(expected) / length as f64;
        for count in counts {
            assert!(
                (f64::from(count) - mean).abs() <= 5.0 * mean.sqrt(),
                "{name}: {count}, {mean}"
            );
        }
    }
}

#[test]
fn random_elements_of_a_sum_are_the_sum_of_random_elements() {
    let (x, y) = (normal(1000, 4), normal(1000, 5));
    let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    for name in ["randomk:0.1", "randomk:0.25:block"] {
        let mut together = round_trip(name, &x, KEY);
        let codec = codec(name);
        codec.decode(&encode(codec.as_ref(), &y, KEY), Write::Add, &mut together).unwrap();
        assert_eq!(together, round_trip(name, &sum, KEY));
    }
}

/// The elements of each block that sorting finds, with what the codec of values makes of them together.
fn largest_of_blocks(values: &[f32], sizes: [usize; 2], codec: &str) -> Vec<f32> {
    let [count, size] = sizes;
    let places = |(first, block): (usize, &[f32])| {
        let mut order: Vec<usize> = (0..block.len()).collect();
        order.sort_by(|a, b| block[*b].abs().total_cmp(&block[*a].abs()));
        order.truncate((count * block.len()).div_ceil(size));
        order.sort_unstable();
        order.into_iter().map(move |at| first + at)
    };
    let places: Vec<usize> =
        (0..).step_by(size).zip(values.chunks(size)).flat_map(places).collect();
    let chosen: Vec<f32> = places.iter().map(|place| values[*place]).collect();
    let mut expected = vec![0.0; values.len()];
    let sent = round_trip(codec, &chosen, KEY);
    places.into_iter().zip(sent).for_each(|(place, sent)| expected[place] = sent);
    expected
}

#[test]
fn the_largest_of_every_block_are_sent_as_the_codec_of_values_has_them() {
    for [count, size] in [[64, 4096], [5, 64], [64, 64], [7, 40_000]] {
        for codec in ["none", "bf16", "int8", "lloyd:2", "onebit", "ecsq:0.5", "lossless"] {
            let name = format!("blocktopk:{count}/{size}:{codec}");
            for length in [1, 63, 4096, 10_000] {
                // Of equal magnitudes the first are sent.
                let sign = |at: usize| if at.is_multiple_of(3) { -0.5 } else { 0.5 };
                let equal = (0..length).map(sign).collect();
                for values in [normal(length, 6), equal] {
                    let expected = largest_of_blocks(&values, [count, size], codec);
                    assert_eq!(round_trip(&name, &values, KEY), expected, "{name} {length}");
                }
            }
        }
    }
}

#[test]
fn deltas_are_212_times_shorter_and_one_damaged_byte_is_no_panic() {
    let (codec, values) = (codec("blocktopk:64/4096:lloyd:2"), normal(1 << 20, 7));
    let mut bytes = encode(codec.as_ref(), &values, KEY);
    assert!(4 * values.len() >= 205 * bytes.len(), "{} bytes", bytes.len());
    let mut decoded = vec![0.0; values.len()];
    for place in (0..bytes.len()).step_by(97) {
        bytes[place] ^= 0x5a;
        codec.decode(&bytes, Write::Set, &mut decoded).unwrap();
        let sent = decoded.chunks(4096).map(|block| block.iter().filter(|x| **x != 0.0).count());
        assert!(sent.max() <= Some(64));
    }
}

#[test]
fn what_is_sent_by_threshold_is_sent_as_it_is() {
    for (name, length, count) in [("graddrop:0.01", 100_000, 1000), ("dgc:0.01", 100_000, 1000)] {
        let values = normal(length, 6);
        let decoded = round_trip(name, &values, KEY);
        let sent = decoded.iter().filter(|x| **x != 0.0).count();
        assert_eq!(sent, count, "{name}");
        assert!(decoded.iter().zip(&values).all(|(y, x)| *y == 0.0 || y == x), "{name}");
        // Nearly as much as the very largest carry.
        let best = squared(round_trip("topk:0.01", &values, KEY));
        assert!(squared(decoded) > 0.9 * best, "{name}");
    }
    let values = normal(100_000, 7);
    assert_eq!(round_trip("dgc:0.01", &values, KEY), round_trip("topk:0.01", &values, KEY));
}

#[test]
fn a_threshold_below_the_values_leaves_a_residual_that_grows() {
    let (tau, codec) = (0.5, codec("tbq:0.5"));
    for (value, grows) in [(0.3f32, false), (-0.49, false), (0.8, true)] {
        let mut residual = vec![0.0; 64];
        for _ in 0..100 {
            let (mut values, mut bytes) = (vec![value; 64], vec![0; codec.encoded_len(64)]);
            let input = Input::Feedback { values: &mut values, residual: &residual };
            let _ = codec.encode(input, KEY, &mut bytes);
            residual = values;
        }
        let largest = residual.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        assert_eq!(largest > 2.0 * tau, grows, "{value}: {largest}");
    }
    let decoded = round_trip("tbq:0.5", &normal(500, 8), KEY);
    assert!(decoded.iter().all(|x| [-tau, 0.0, tau].contains(x)));
}

#[test]
fn all_coefficients_are_all_of_the_values() {
    for length in [64, 100, 4096, 5000] {
        let values = normal(length, 9);
        let decoded = round_trip("dct:4096", &values, KEY);
        let lost = squared(decoded.iter().zip(&values).map(|(a, b)| a - b));
        assert!(lost < 2.0f64.powi(-16) * squared(values), "{length}");
    }
}

/// The lengths in docs/algorithms.md: whole blocks, then what a last block of `rest` takes.
#[test]
fn lengths_are_those_that_the_documentation_gives() {
    type Rest = fn(usize) -> usize;
    let blocks: [(&str, usize, usize, Rest); 18] = [
        ("int8", 256, 260, |rest| 4 + rest),
        ("int4", 128, 68, |rest| 4 + 16 * (rest / 32) + (rest % 32).min(16)),
        ("int3", 128, 52, |rest| 4 + 16 * (rest.min(96) / 32) + (rest.min(96) % 32).min(16)),
        ("lloyd:1", 128, 18, |rest| 2 + rest.min(16)),
        ("lloyd:4", 128, 80, |rest| 16 + 4 * rest.min(16)),
        ("int2", 128, 36, |rest| 4 + 16 * (rest / 64) + (rest % 64).min(16)),
        ("onebit", 128, 20, |rest| 4 + rest.min(16)),
        ("vote", 128, 16, |rest| rest.min(16)),
        ("terngrad", 128, 36, |rest| 4 + 2 * rest.min(16)),
        ("terngrad:2.5", 128, 36, |rest| 4 + 2 * rest.min(16)),
        ("qsgd:3", 128, 52, |rest| 4 + 3 * rest.min(16)),
        ("qsgd:4:l2", 128, 68, |rest| 4 + 4 * rest.min(16)),
        ("qsgd:8", 128, 132, |rest| 4 + rest),
        ("natural", 128, 128, |rest| rest),
        ("e4m3", 128, 132, |rest| 4 + rest),
        ("e5m2", 128, 132, |rest| 4 + rest),
        ("dynamic8", 128, 132, |rest| 4 + rest),
        ("tbq:1", 128, 32, |rest| 2 * rest.min(16)),
    ];
    for (name, block, bytes, of_rest) in blocks {
        for length in [0, 1, 5, 16, 17, 33, 100, 127, 128, 129, 255, 256, 1000] {
            let (whole, rest) = (length / block * bytes, length % block);
            let expected = whole + if rest == 0 { 0 } else { of_rest(rest) };
            assert_eq!(codec(name).encoded_len(length), expected, "{name} {length}");
        }
    }
    for (name, length, expected) in [
        ("none", 1000, 4000),
        ("bf16", 1000, 2000),
        ("randomk:0.01", 1000, 8 + 40),
        ("randomk:0.25:block", 1000, 8 + 2 * 512),
        ("randomk:0.25:block", 100, 8 + 400),
        ("graddrop:0.5", 8, codec("topk:0.5").encoded_len(8)),
        // The logarithms of C(4096, 64) and C(100, 2) are 471.3 and 12.3.
        ("blocktopk:64/4096", 4096, 59 + 4 * 64),
        ("blocktopk:64/4096", 4096 + 100, 59 + 4 * 64 + 2 + 4 * 2),
        ("blocktopk:64/4096:lloyd:2", 2 * 4096, 2 * 59 + 36),
        // Of 32 of 4096 indices seven bits each are lower ones, and 31 + 32 upper ones.
        ("dct:32", 4096, 2 * 32 + 28 + 8),
    ] {
        assert_eq!(codec(name).encoded_len(length), expected, "{name} {length}");
    }
}

#[test]
fn a_mean_overflows_only_where_values_do() {
    let values: Vec<f32> = (0..200).map(|i| if i % 3 == 0 { f32::MAX } else { f32::MIN }).collect();
    for (x, y) in values.iter().zip(round_trip("onebit", &values, KEY)) {
        assert!((y / x - 1.0).abs() < 1e-4, "{x} became {y}");
    }
    let values = vec![f32::MAX / 2.0; 128];
    assert!(round_trip("int2", &values, KEY).iter().all(|y| y.is_finite()));
}

/// Else the largest value would be cut off, too rarely and by too little for any statistics to see.
#[test]
fn the_highest_level_is_not_below_the_largest_value() {
    let names = ["int8:stochastic", "int4:stochastic", "int3:stochastic", "qsgd:4", "terngrad"];
    for name in names {
        for seed in 0..50 {
            let values = normal(128, seed);
            let largest = |values: &[f32]| values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            let highest =
                (0..20).map(|step| largest(&round_trip(name, &values, Key { step, ..KEY })));
            assert!(highest.fold(0.0, f32::max) >= largest(&values), "{name} {seed}");
        }
    }
}
