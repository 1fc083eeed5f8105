//! Gradients at the end of the range of f32, over links in memory: they are averaged to finite numbers, or
//! the step is skipped as if they were infinite, and no trace of them keeps later steps from being averaged.

mod made;

use std::ops::Range;

use made::{averages, options, spawn_with};
use proptest::prelude::*;
use thinwire_sync::{Options, Outcome, Parameter, Synchronizer};
use thinwire_wire::random::Key;

fn parameters() -> Vec<Parameter> {
    vec![Parameter::new("weight", &[48, 35]), Parameter::new("bias", &[48])]
}

/// Every codec of the table, and steps of `ecsq` around those.
fn codecs() -> Vec<String> {
    let table = thinwire_codec::all().into_iter().map(|codec| codec.to_string());
    let more = ["ecsq:1.6", "ecsq:0.02", "powersgd:4:alternate", "graddrop:0.1"];
    table.chain(more.map(str::to_owned)).collect()
}

/// The gradients of one case.
#[derive(Clone, Copy, Debug)]
struct Gradients {
    /// The largest magnitude, of ordinary steps and of others.
    ordinary: f32,
    huge: f32,
    /// Whether all values have the largest magnitude, and whether ranks have the same ones.
    flat: bool,
    equal: bool,
}

impl Gradients {
    fn give(&self, sync: &mut Synchronizer, step: u64, huge: &Range<u64>) -> Outcome {
        let largest = if huge.contains(&step) { self.huge } else { self.ordinary };
        let seed = if self.equal { 0 } else { sync.world().rank().0.into() };
        sync.begin(step).unwrap();
        for (index, parameter) in parameters().iter().enumerate() {
            let key = Key { seed, step, tensor: index as u32 };
            let value = |i| match self.flat {
                true => largest.copysign(key.normal(i)),
                false => largest * (2.0 * key.uniform(i) - 1.0),
            };
            let values: Vec<f32> = (0..parameter.elements() as u64).map(value).collect();
            sync.ready(index, &values).unwrap();
        }
        sync.finish().unwrap()
    }
}

fn is_finite<'a>(values: impl IntoIterator<Item = &'a f32>) -> bool {
    values.into_iter().all(|value| value.is_finite())
}

/// The outcomes of all steps, once results and residuals were found to be finite after each of them.
fn outcomes(sync: &mut Synchronizer, gradients: Gradients, huge: &Range<u64>) -> Vec<Outcome> {
    let step = |step| {
        let outcome = gradients.give(sync, step, huge);
        let is_kept = outcome == Outcome::Averaged;
        assert!(!is_kept || is_finite(&averages(sync).concat()), "step {step}: the averages");
        for (name, (_, values)) in sync.state().tensors {
            assert!(is_finite(&values), "step {step}: {name}");
        }
        outcome
    };
    (0..huge.end + 3).map(step).collect()
}

fn try_on(options: &Options, size: usize, gradients: Gradients) {
    let huge = 1..5;
    let ranks =
        spawn_with(size, &parameters(), options, |mut sync| outcomes(&mut sync, gradients, &huge));
    for outcomes in &ranks {
        assert_eq!(outcomes, &ranks[0]);
        let mut ordinary = (0..).zip(outcomes).filter(|(step, _)| !huge.contains(step));
        let skipped = ordinary.find(|(_, outcome)| **outcome == Outcome::Skipped);
        assert_eq!(skipped, None, "an ordinary step was skipped: {outcomes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_finite_stays_so_or_is_skipped(
        codec in prop::sample::select(codecs()),
        feedback in prop::sample::select(vec!["classic", "classic", "ef21", "average:0.5", "decay:0.5"]),
        algorithm in prop::sample::select(vec![None, Some("gather"), Some("two-shot")]),
        size in 1_usize..4,
        huge in prop_oneof![(60..127_i32).prop_map(|e| 2.0_f32.powi(e)), 1e38_f32..3.4e38],
        (flat, equal) in any::<(bool, bool)>(),
    ) {
        let options = Options {
            algorithm: algorithm.map(|name| name.parse().unwrap()),
            feedback: feedback.parse().unwrap(),
            ..options(&codec)
        };
        let link = thinwire_link::mem::alone();
        // Some codecs take no such algorithm or no feedback.
        prop_assume!(Synchronizer::start(link, parameters(), options.clone()).is_ok());
        try_on(&options, size, Gradients { ordinary: 1.0, huge, flat, equal });
    }
}

#[test]
fn huge_gradients_of_all_ranks_leave_no_trace() {
    for codec in ["ecsq:1.6", "ecsq:0.5", "int2", "onebit", "topk:0.01", "powersgd:2", "auto"] {
        for flat in [false, true] {
            let gradients = Gradients { ordinary: 1e-3, huge: 3e38, flat, equal: false };
            try_on(&options(codec), 2, gradients);
        }
    }
}

/// With feedback, a gradient above 2^100 is skipped as an infinite one is; raw it is averaged.
#[test]
fn the_largest_gradients_that_feedback_takes_are_2_to_the_100() {
    for (codec, huge, skipped) in [
        ("int4", 2.0_f32.powi(101), false),
        ("int4", 2.0_f32.powi(101) * 1.001, true),
        ("powersgd:2", 2.0_f32.powi(102), true),
        ("none", 3e38, false),
    ] {
        spawn_with(2, &parameters(), &options(codec), |mut sync| {
            let gradients = Gradients { ordinary: 1.0, huge, flat: true, equal: true };
            let give = |sync: &mut Synchronizer, step, huge| gradients.give(sync, step, &huge);
            assert_eq!(give(&mut sync, 0, 0..0), Outcome::Averaged);
            let before = sync.state();
            let outcome = give(&mut sync, 1, 1..2);
            assert_eq!(outcome == Outcome::Skipped, skipped, "{codec} {huge}");
            assert!(!skipped || sync.state() == before, "{codec}: the state has changed");
        });
    }
}

/// The averages of some steps on two ranks with gradients times a power of two; none for a skipped step.
fn scaled(codec: &str, exponent: i32) -> Vec<Option<Vec<f32>>> {
    let scale = 2.0_f32.powi(exponent);
    let ranks = spawn_with(2, &parameters(), &options(codec), |mut sync| {
        let gradients = Gradients { ordinary: scale, huge: scale, flat: false, equal: false };
        let step = |step| match gradients.give(&mut sync, step, &(0..0)) {
            Outcome::Averaged => Some(averages(&sync).concat()),
            Outcome::Skipped => None,
        };
        (0..4).map(step).collect::<Vec<_>>()
    });
    ranks.into_iter().next().unwrap()
}

/// Codecs with a threshold or a magnitude of their own, by the beginning of their names, mean another thing at
/// another size, and f16 has no small numbers.
const ABSOLUTE: [&str; 3] = ["vote", "tbq", "f16"];

/// Averages are right for gradients from 1e-24 to 1e29, or the step is skipped.
#[test]
fn gradients_of_another_size_have_averages_of_that_size() {
    let codecs = codecs().into_iter();
    for codec in codecs.filter(|codec| !ABSOLUTE.iter().any(|other| codec.starts_with(other))) {
        let ordinary = scaled(&codec, 0);
        for exponent in [-80, -40, 40, 80, 98] {
            let pairs = ordinary.iter().zip(scaled(&codec, exponent));
            for (step, (ordinary, found)) in pairs.enumerate() {
                let ordinary = ordinary.as_ref().expect("an ordinary step is kept");
                let Some(found) = found else {
                    // Its codes are exponents, of which there are few.
                    assert!(exponent > 0 && codec == "natural", "{codec}: 2^{exponent} is skipped");
                    continue;
                };
                let back = 2.0_f64.powi(-exponent);
                let error = ordinary.iter().zip(&found);
                let error =
                    error.map(|(x, found)| (f64::from(*found) * back - f64::from(*x)).powi(2));
                let norm: f64 = ordinary.iter().map(|x| f64::from(*x).powi(2)).sum();
                let error = (error.sum::<f64>() / norm).sqrt();
                assert!(error < 1e-5, "{codec}: {error} at 2^{exponent} in step {step}");
            }
        }
    }
}
