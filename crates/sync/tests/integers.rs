//! The laws of integers under scales that all ranks share, over links in memory.

mod made;

use made::{averages, normal, spawn_with};
use thinwire_schedule::Algorithm;
use thinwire_sync::{Options, Outcome, Parameter, State, Synchronizer, reshard};

const NAMES: [&str; 2] = ["intsgd", "intsgd:16"];

fn parameters() -> Vec<Parameter> {
    vec![Parameter::new("wide", &[60, 50]), Parameter::new("tall", &[90, 20])]
}

fn options(codec: &str) -> Options {
    Options { policy: codec.parse().unwrap(), seed: 3, ..Options::default() }
}

fn gradient(rank: u32, step: u64, parameter: usize) -> Vec<f32> {
    normal(rank, step, parameter, parameters()[parameter].elements())
}

/// One step in which each rank gives `of(rank, parameter)`; the averages.
fn give(sync: &mut Synchronizer, step: u64, of: impl Fn(u32, usize) -> Vec<f32>) -> Vec<Vec<f32>> {
    let rank = sync.world().rank().0;
    sync.begin(step).unwrap();
    (0..2).for_each(|index| sync.ready(index, &of(rank, index)).unwrap());
    assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
    averages(sync)
}

fn scales(state: &State) -> [f32; 2] {
    ["scale.wide", "scale.tall"].map(|name| {
        let (shape, values) = &state.tensors[name];
        assert_eq!((shape.as_slice(), values.len()), (&[1][..], 1));
        values[0]
    })
}

fn sent_bytes(sync: &Synchronizer) -> u64 {
    sync.record().total(|bucket| bucket.sent_bytes)
}

#[test]
fn sums_have_the_same_bits_whatever_the_algorithm() {
    for (codec, size) in NAMES.into_iter().flat_map(|codec| [(codec, 4), (codec, 5)]) {
        let tensors = [("scale.wide", 0.7), ("scale.tall", 1.3)]
            .map(|(name, scale)| (name.to_owned(), (vec![1], vec![scale])));
        let state = State { tensors: tensors.into(), ..State::default() };
        let by = |algorithm: Algorithm, partitions| {
            let options = Options {
                algorithm: Some(algorithm.into()),
                partitions: Some(partitions),
                ..options(codec)
            };
            let ranks = spawn_with(size, &parameters(), &options, |mut sync| {
                sync.load_tensors(&state).unwrap();
                give(&mut sync, 0, |rank, index| gradient(rank, 0, index))
            });
            assert!(ranks.iter().all(|averages| *averages == ranks[0]));
            ranks[0].clone()
        };
        let ring = by(Algorithm::Ring, 1);
        for algorithm in Algorithm::ALL {
            assert_eq!(by(algorithm, 3), ring, "{codec} by {algorithm}, {size} ranks");
        }
    }
}

#[test]
fn the_first_step_is_exact_and_the_next_sends_one_or_two_bytes_each() {
    for (codec, bytes) in NAMES.into_iter().zip([1, 2]) {
        spawn_with(2, &parameters(), &options(codec), |mut sync| {
            let elements: u64 = parameters().iter().map(|p| p.elements() as u64).sum();
            let first = give(&mut sync, 0, |rank, index| gradient(rank, 0, index));
            for (index, averages) in first.iter().enumerate() {
                let given = [0, 1].map(|rank| gradient(rank, 0, index));
                let mean = |(a, b): (&f32, &f32)| a * 0.5 + b * 0.5;
                let expected: Vec<f32> = given[0].iter().zip(&given[1]).map(mean).collect();
                assert_eq!(*averages, expected);
            }
            let headers = sent_bytes(&sync) - 4 * elements;
            assert!((1..=200).contains(&headers), "{headers}");
            let _ = give(&mut sync, 1, |rank, index| gradient(rank, 1, index));
            assert_eq!(sent_bytes(&sync), bytes * elements + headers);
        });
    }
}

/// The same gradients in every step: then so is the scale, and only rounding differs.
#[test]
fn averages_are_right_in_the_mean() {
    const STEPS: u64 = 400;
    for (codec, finer) in NAMES.into_iter().zip([1.0, 16.0]) {
        let size = 3;
        let ranks = spawn_with(size, &parameters(), &options(codec), |mut sync| {
            let mut sums = [vec![0.0_f64; 3000], vec![0.0; 1800]];
            for step in 0..STEPS {
                let averages = give(&mut sync, step, |rank, index| gradient(rank, 0, index));
                for (sum, x) in sums.iter_mut().flatten().zip(averages.iter().flatten()) {
                    *sum += f64::from(*x) / STEPS as f64;
                }
            }
            (sums, scales(&sync.state()))
        });
        let (sums, scales) = &ranks[0];
        for index in 0..2 {
            let given: Vec<Vec<f32>> =
                (0..size as u32).map(|rank| gradient(rank, 0, index)).collect();
            let unit = f64::from(scales[index]) * (2.0 / size as f64).sqrt() / finer;
            let error = unit * (size as f64).sqrt() / 2.0 / (STEPS as f64).sqrt();
            for (element, found) in sums[index].iter().enumerate() {
                let mean = given.iter().map(|g| f64::from(g[element])).sum::<f64>() / size as f64;
                assert!((found - mean).abs() < 5.0 * error, "{codec}: {found}, expected {mean}");
            }
        }
    }
}

#[test]
fn scales_are_alike_and_survive_another_world() {
    let saved: Vec<State> = spawn_with(3, &parameters(), &options("intsgd"), |mut sync| {
        assert_eq!(scales(&sync.state()), [0.0; 2], "none yet");
        for step in 0..3 {
            let _ = give(&mut sync, step, |rank, index| gradient(rank, step, index));
        }
        sync.state()
    });
    assert!(scales(&saved[0]).iter().all(|scale| (0.5..1.0).contains(scale)));
    assert!(saved.iter().all(|state| scales(state) == scales(&saved[0])));
    for size in [2, 5] {
        let ranks = spawn_with(size, &parameters(), &options("intsgd"), |mut sync| {
            let read = |rank: usize| Ok::<_, thinwire_sync::Error>(saved[rank].tensors.clone());
            let tensors = reshard(sync.world(), saved.len(), read).unwrap();
            sync.load_tensors(&State { tensors, ..State::default() }).unwrap();
            assert_eq!(scales(&sync.state()), scales(&saved[0]));
            let averages = give(&mut sync, 3, |rank, index| gradient(rank, 3, index));
            assert!(sent_bytes(&sync) < 10_000, "as integers at once");
            (averages, scales(&sync.state()))
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]));
    }
}

#[test]
fn gradients_that_grow_are_cut_off_never_wrapped_and_soon_followed() {
    for codec in NAMES {
        spawn_with(4, &parameters(), &options(codec), |mut sync| {
            let large = |_: u32, index: usize| vec![1e4; parameters()[index].elements()];
            let _ = give(&mut sync, 0, |_, index| vec![1.0; parameters()[index].elements()]);
            let cut = give(&mut sync, 1, large);
            assert!(cut.iter().flatten().all(|x| (20.0..2000.0).contains(x)), "{:?}", cut[0][0]);
            let after = (2..5).map(|step| give(&mut sync, step, large)).last().unwrap();
            let mean = after[0].iter().sum::<f32>() / after[0].len() as f32;
            assert!((mean / 1e4 - 1.0).abs() < 0.05, "{codec}: {mean}");
        });
    }
}

#[test]
fn a_tensor_that_was_zero_takes_the_scale_of_its_bucket() {
    let ranks = spawn_with(2, &parameters(), &options("intsgd"), |mut sync| {
        let none = |_: u32, index: usize| vec![0.0; parameters()[index].elements()];
        assert_eq!(give(&mut sync, 0, none).concat(), vec![0.0; 4800]);
        let some = |rank: u32, index: usize| match index {
            0 => gradient(rank, 1, 0),
            _ => vec![0.0; 1800],
        };
        let _ = give(&mut sync, 1, some);
        assert!(sent_bytes(&sync) > 4 * 4800, "no scale, no integers");
        assert_eq!(scales(&sync.state())[1], 0.0);
        let late = give(&mut sync, 2, |rank, index| gradient(rank, 2, index));
        assert!(sent_bytes(&sync) < 2 * 4800);
        let square = |x: f32| f64::from(x * x);
        let mean = late[1].iter().map(|x| square(*x)).sum::<f64>() / 1800.0;
        assert!((0.3..2.0).contains(&mean), "{mean}");
        scales(&sync.state())
    });
    assert!(ranks[0][1] > 0.5 && ranks[0] == ranks[1]);
}

/// Least squares with other data in every step: noise that is right in the mean dies out with the
/// rate.
#[test]
fn descent_comes_as_near_as_that_of_f32() {
    let distance = |codec: &str| {
        let ranks = spawn_with(4, &parameters(), &options(codec), |mut sync| {
            let mut weights = [vec![0.0_f32; 3000], vec![0.0; 1800]];
            for step in 0..300 {
                let of = |rank: u32, index: usize| {
                    let targets = gradient(rank, step, index);
                    weights[index].iter().zip(targets).map(|(w, target)| w - target).collect()
                };
                let rate = 1.0 / (2.0 + step as f32 / 4.0);
                let averages = give(&mut sync, step, of);
                for (w, g) in weights.iter_mut().flatten().zip(averages.iter().flatten()) {
                    *w -= rate * g;
                }
            }
            weights.concat().iter().map(|w| f64::from(w - 0.3).powi(2)).sum::<f64>()
        });
        (ranks[0] / 4800.0).sqrt()
    };
    let raw = distance("none");
    for (codec, times) in NAMES.into_iter().zip([1.5, 1.02]) {
        let found = distance(codec);
        assert!(found < times * raw && raw < 0.1, "{codec}: {found}, raw {raw}");
    }
}
