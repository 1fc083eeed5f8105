//! What integers under a shared scale must do.

use proptest::prelude::*;
use thinwire_codec::{Choice, Finite, Input, IntSgd, Write};
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 6, step: 2, tensor: 5 };

fn codec(name: &str) -> IntSgd {
    let Choice::Integers(codec) = Choice::parse(name).unwrap() else { panic!("{name}") };
    codec
}

fn both() -> [IntSgd; 2] {
    ["intsgd", "intsgd:16"].map(codec)
}

fn normal(length: usize, seed: u64) -> Vec<f32> {
    (0..length as u64).map(|i| Key { seed, ..KEY }.normal(i)).collect()
}

proptest! {
    #[test]
    fn a_value_becomes_one_of_two_integers_next_to_it(
        values in prop::collection::vec(-300.0_f32..300.0, 1..300),
        ranks in 1_usize..=127,
        seed: u64,
    ) {
        for codec in both() {
            let (limit, unit) = (codec.limit(ranks).unwrap(), codec.unit(10.0, ranks));
            let mut rounded = values.clone();
            prop_assert_eq!(codec.round(&mut rounded, unit, limit, Key { seed, ..KEY }), Finite::Yes);
            for (x, q) in values.iter().zip(rounded) {
                let inside = (x / unit).clamp(-(limit as f32), limit as f32);
                prop_assert!(q.fract() == 0.0 && q.abs() <= limit as f32, "{codec}: {q}");
                prop_assert!((q - inside).abs() < 1.0, "{codec}: {x} of {unit} became {q}");
            }
        }
    }

    #[test]
    fn no_sum_over_ranks_overflows(ranks in 1_usize..40_000) {
        for codec in both() {
            match codec.limit(ranks) {
                Some(limit) => prop_assert!(limit * ranks <= codec.ranks_max()),
                None => prop_assert!(ranks > codec.ranks_max()),
            }
        }
    }

    #[test]
    fn integers_travel_as_they_are(raw in prop::collection::vec(any::<i16>(), 0..400)) {
        for (codec, bytes) in both().into_iter().zip([1, 2]) {
            let most = codec.ranks_max() as i32;
            let values: Vec<f32> =
                raw.iter().map(|x| (i32::from(*x) % (most + 1)) as f32).collect();
            let wire = codec.integers();
            let mut encoded = vec![0; wire.encoded_len(values.len())];
            prop_assert_eq!(encoded.len(), bytes * values.len());
            prop_assert_eq!(wire.encode(Input::Plain(&values), KEY, &mut encoded), Finite::Yes);
            let mut decoded = vec![f32::NAN; values.len()];
            wire.decode(&encoded, Write::Set, &mut decoded).unwrap();
            prop_assert_eq!(&decoded, &values);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for codec in both() {
        let most = codec.ranks_max() as f32;
        for spoiled in [most + 1.0, -most - 1.0, f32::NAN, f32::INFINITY] {
            let (wire, mut values) = (codec.integers(), vec![1.0; 200]);
            values[150] = spoiled;
            let mut encoded = vec![0; wire.encoded_len(200)];
            assert_eq!(wire.encode(Input::Plain(&values), KEY, &mut encoded), Finite::No);
            let fits = Finite::from(spoiled.is_finite());
            assert_eq!(codec.round(&mut values, 1.0, 7, KEY), fits, "{spoiled} is cut off");
        }
    }
}

/// Per element, within five standard errors of a mean over seeds.
#[test]
fn rounding_is_right_in_the_mean() {
    let values = normal(500, 1);
    const SEEDS: u64 = 4000;
    for codec in both() {
        let (limit, unit) = (codec.limit(4).unwrap(), codec.unit(1.0, 4));
        let mut sums = vec![0.0; values.len()];
        for seed in 0..SEEDS {
            let mut rounded = values.clone();
            assert_eq!(codec.round(&mut rounded, unit, limit, Key { seed, ..KEY }), Finite::Yes);
            sums.iter_mut().zip(rounded).for_each(|(sum, q)| *sum += f64::from(q));
        }
        for (x, sum) in values.iter().zip(sums) {
            let (mean, expected) = (sum / SEEDS as f64, f64::from(x / unit));
            let part = expected - expected.floor();
            let error = (part * (1.0 - part) / SEEDS as f64).sqrt();
            assert!((mean - expected).abs() < 5.0 * error + 1e-3, "{codec}: {mean}, {expected}");
        }
    }
}

#[test]
fn the_scale_follows_the_averages() {
    let large: Vec<f32> = normal(10_000, 3).iter().map(|x| x * 1e25).collect();
    let first = IntSgd::follow(0.0, &large);
    assert!((first / 1e25 - 1.0).abs() < 0.02, "squares do not overflow: {first}");
    assert!((IntSgd::follow(first, &large) / first - 1.0).abs() < 1e-6);
    let (half, none) = (large.iter().map(|x| x / 2.0).collect::<Vec<_>>(), [0.0; 8]);
    let expected = first * (0.9_f32 + 0.025).sqrt();
    assert!((IntSgd::follow(first, &half) / expected - 1.0).abs() < 1e-6);
    assert!((IntSgd::follow(first, &none) / (first * 0.9_f32.sqrt()) - 1.0).abs() < 1e-6);
    assert_eq!([IntSgd::follow(0.0, &none), IntSgd::follow(0.0, &[])], [0.0; 2]);
}
