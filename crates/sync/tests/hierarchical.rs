//! Buckets that are summed within units of ranks before they travel between them.

mod made;

use made::{averages, give, options, parameters, spawn_with};
use thinwire_sync::{Error, Options, Outcome, Synchronizer};
use thinwire_testkit::{self as testkit, Network};

const STEPS: u64 = 4;

fn by(codec: &str, algorithm: &str) -> Options {
    Options { algorithm: Some(algorithm.parse().unwrap()), ..options(codec) }
}

/// The averages of a rank after each step, and what it owes then.
type History = Vec<(Vec<Vec<f32>>, Vec<Vec<f32>>)>;

fn train(size: usize, options: &Options) -> Vec<History> {
    spawn_with(size, &parameters(), options, |mut sync| {
        let step = |step| {
            assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
            (averages(&sync), owed(&sync))
        };
        (0..STEPS).map(step).collect()
    })
}

fn owed(sync: &Synchronizer) -> Vec<Vec<f32>> {
    let state = sync.state();
    let of = |parameter: &thinwire_sync::Parameter| {
        let found = state.tensors.get(&format!("residual.{}", parameter.name));
        found.map_or_else(|| vec![0.0; parameter.elements()], |(_, values)| values.clone())
    };
    parameters().iter().map(of).collect()
}

/// The element-wise sum over ranks of what they owe of a parameter after a step.
fn owed_by_all(ranks: &[History], step: usize, parameter: usize) -> Vec<f64> {
    let mut sum = vec![0.0; parameters()[parameter].elements()];
    for history in ranks {
        let owed = &history[step].1[parameter];
        sum.iter_mut().zip(owed).for_each(|(sum, owed)| *sum += f64::from(*owed));
    }
    sum
}

#[test]
fn units_sum_as_a_flat_ring_does_and_with_the_same_bits_everywhere() {
    let flat = train(4, &by("none", "ring"));
    for between in ["ring", "halving", "two-shot", "gather", "ring-gather"] {
        let units = train(4, &by("none", &format!("hierarchical:2:{between}")));
        assert!(units.iter().all(|rank| *rank == units[0]), "{between}");
        for ((found, _), (expected, _)) in units[0].iter().zip(&flat[0]) {
            for (found, expected) in found.concat().iter().zip(expected.concat()) {
                let close = (found - expected).abs() <= 1e-6 * (1.0 + expected.abs());
                assert!(close, "{found} for {expected}: {between}");
            }
        }
    }
}

#[test]
fn averages_and_residuals_of_units_hold_everything() {
    let cases = [
        ("int8", "two-shot", 4, 2),
        ("int4", "gather", 4, 2),
        ("topk:0.05", "gather", 6, 3),
        ("onebit", "two-shot", 6, 2),
    ];
    for (codec, between, size, unit) in cases {
        let options = by(codec, &format!("hierarchical:{unit}:{between}"));
        let ranks = train(size, &options);
        let flat = train(size, &by("none", "ring"));
        for step in 0..STEPS as usize {
            for rank in &ranks {
                assert_eq!(rank[step].0, ranks[0][step].0, "{options:?}");
            }
            for parameter in 0..parameters().len() {
                let before = match step {
                    0 => vec![0.0; parameters()[parameter].elements()],
                    _ => owed_by_all(&ranks, step - 1, parameter),
                };
                let after = owed_by_all(&ranks, step, parameter);
                let (found, given) = (&ranks[0][step].0[parameter], &flat[0][step].0[parameter]);
                for index in 0..after.len() {
                    let kept = f64::from(found[index]) + after[index];
                    let expected = f64::from(given[index]) + before[index];
                    let what = || format!("{kept} for {expected}: {codec} {between}, step {step}");
                    assert!((kept - expected).abs() < 1e-4, "{}", what());
                }
            }
        }
    }
}

#[test]
fn factors_and_integers_travel_in_units() {
    for codec in ["powersgd:2", "powersgd:2:alternate", "intsgd"] {
        let flat = train(4, &by(codec, "ring"));
        let units = train(4, &by(codec, "hierarchical:2:ring"));
        assert!(units.iter().all(|rank| (0..4).all(|step| rank[step].0 == units[0][step].0)));
        let pairs = units[0].iter().zip(&flat[0]).flat_map(|((found, _), (expected, _))| {
            found.concat().into_iter().zip(expected.concat()).collect::<Vec<_>>()
        });
        let (mut off, mut all) = (0.0, 0.0);
        for (found, expected) in pairs {
            (off, all) = (off + (found - expected).powi(2), all + expected * expected);
        }
        // Sums in another order round some integers and factors otherwise.
        assert!(off < 1e-3 * all, "{codec}: {off} of {all}");
    }
}

#[test]
fn a_step_that_is_not_finite_is_skipped_by_all_units() {
    for codec in ["none", "int8"] {
        let options = by(codec, "hierarchical:2:two-shot");
        let ranks = spawn_with(4, &parameters(), &options, |mut sync| {
            assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
            let before = owed(&sync);
            assert_eq!(give(&mut sync, 1, true), Outcome::Skipped);
            assert_eq!(owed(&sync), before);
            assert_eq!(give(&mut sync, 2, false), Outcome::Averaged);
            averages(&sync)
        });
        assert!(ranks.iter().all(|averages| *averages == ranks[0]), "{codec}");
    }
}

#[test]
fn units_that_do_not_divide_the_ranks_are_refused() {
    let errors = testkit::spawn(Network::Mem, 3, |link| {
        Synchronizer::start(link, parameters(), by("none", "hierarchical:2:ring")).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Invalid(_)));
        let expected = "algorithm hierarchical:2:ring with 3 ranks, expected a multiple of 2";
        assert_eq!(error.to_string(), expected);
    }
}
