//! Golden values: parameters and residuals after twenty steps, for every codec, on two and four ranks.
//!
//! Every rank minimises a quadratic of its own, whose gradients are products and differences of f32, so
//! that the parameters are the same on every machine. The values are recorded in `testdata/golden.txt`;
//! `THINWIRE_GOLDEN=update` records them anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use thinwire_codec::Choice;
use thinwire_schedule::Algorithm;
use thinwire_sync::{
    Assignment, Feedback, Momentum, Options, Outcome, Parameter, Part, Plan, Scatter, State,
    Synchronizer,
};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::DType;

const STEPS: u64 = 20;
const RATE: f32 = 0.25;
const SIZES: [usize; 2] = [2, 4];

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("head.weight", &[48, 70]),
        Parameter::new("head.bias", &[48]),
        Parameter::new("hidden.weight", &[70, 33]),
        Parameter::new("thin.weight", &[3, 2]),
        Parameter::new("input.weight", &[33, 65]),
    ]
}

/// A whole number below 2^10 for every element of every tensor on every rank, over 2^8.
fn target(rank: usize, tensor: usize, element: usize) -> f32 {
    let mixed = (element as u32 + 1)
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add((rank as u32 * 31 + tensor as u32 * 7 + 1).wrapping_mul(0x85EB_CA6B));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2C1B_3C6D);
    let value = (mixed >> 22) as f32 / 256.0 - 2.0;
    // A few elements are much larger, as in gradients.
    if element.is_multiple_of(37) { value * 8.0 } else { value }
}

/// The gradient of half the squared distance to this rank's target.
fn gradient(values: &[f32], rank: usize, tensor: usize) -> Vec<f32> {
    let curvature = 1.0 + tensor as f32 / 4.0;
    let slope =
        |(element, value): (usize, &f32)| curvature * (value - target(rank, tensor, element));
    values.iter().enumerate().map(slope).collect()
}

fn hash<'a>(all: impl IntoIterator<Item = &'a [f32]>) -> u32 {
    let bytes = all.into_iter().flatten().flat_map(|value| value.to_bits().to_le_bytes());
    thinwire_wire::checksum(&bytes.collect::<Vec<u8>>())
}

fn hash_of_state(state: &State) -> u32 {
    let mut text = String::new();
    for (name, (shape, values)) in &state.tensors {
        write!(text, "{name} {shape:?} {:08x};", hash([values.as_slice()])).unwrap();
    }
    thinwire_wire::checksum(text.as_bytes())
}

/// The hash of the parameters, the same on all ranks, then that of each rank's state.
fn train(options: &Options, size: usize, plan: Option<&Plan>) -> Vec<u32> {
    let ranks = testkit::spawn(Network::Mem, size, |link| {
        let mut sync = Synchronizer::start(link, parameters(), options.clone()).unwrap();
        let rank = sync.world().rank().index();
        let mut values: Vec<Vec<f32>> =
            parameters().iter().map(|parameter| vec![0.0; parameter.elements()]).collect();
        for step in 0..STEPS {
            if let Some(plan) = plan {
                let plan = serde_json::to_string(plan).unwrap();
                sync.load(&State { plan, ..sync.state() }).unwrap();
            }
            sync.begin(step).unwrap();
            for (tensor, values) in values.iter().enumerate() {
                let mut gradient = gradient(values, rank, tensor);
                if step == 7 && rank == 1 && tensor == 2 {
                    gradient[3] = f32::NAN;
                }
                sync.ready(tensor, &gradient).unwrap();
            }
            let expected = if step == 7 { Outcome::Skipped } else { Outcome::Averaged };
            assert_eq!(sync.finish().unwrap(), expected);
            if expected == Outcome::Skipped {
                continue;
            }
            for (tensor, values) in values.iter_mut().enumerate() {
                let averages = sync.gradient(tensor);
                values.iter_mut().zip(averages).for_each(|(value, slope)| *value -= RATE * slope);
            }
        }
        let mut state = sync.state();
        // The record is older than the count of steps for the budget of `auto`.
        if options.warm_up_steps == 0 {
            state.tensors.remove(State::WARM_UP);
        }
        (hash(values.iter().map(Vec::as_slice)), hash_of_state(&state))
    });
    assert!(ranks.iter().all(|(values, _)| *values == ranks[0].0));
    let states = ranks.iter().map(|(_, state)| *state);
    std::iter::once(ranks[0].0).chain(states).collect()
}

/// Elements of a rank's shards.
const SHARDS: [usize; 2] = [700, 129];

/// The hash of all shards in rank order, then that of each rank's residuals.
fn shard(codec: &Choice, dtype: DType, size: usize) -> Vec<u32> {
    let ranks = testkit::spawn(Network::Mem, size, |link| {
        let mut scatter = Scatter::start(link, codec.clone(), 7, Duration::from_secs(60)).unwrap();
        let rank = scatter.world().rank().index();
        let mut shards: Vec<Vec<f32>> = SHARDS.map(|elements| vec![0.0; elements]).to_vec();
        let raw = thinwire_codec::raw();
        for step in 0..STEPS {
            for (tensor, shard) in shards.iter_mut().enumerate() {
                let whole = scatter.all_gather(&raw, 10 + tensor as u64, shard).unwrap();
                let mut gradient = gradient(&whole, rank, tensor);
                gradient.iter_mut().for_each(|slope| *slope /= size as f32);
                if step == 7 && rank == 1 && tensor == 1 {
                    gradient[3] = f32::INFINITY;
                }
                let part = Part { key: tensor as u64, elements: shard.len() };
                let sum = scatter.reduce_scatter(&[part], dtype, gradient).unwrap();
                if sum.iter().all(|slope| slope.is_finite()) {
                    shard.iter_mut().zip(sum).for_each(|(value, slope)| *value -= RATE * slope);
                }
            }
        }
        let state = scatter.state();
        (shards.concat(), hash(state.values().map(|place| place.residual.as_slice())))
    });
    let shards = hash(ranks.iter().map(|(shard, _)| shard.as_slice()));
    std::iter::once(shards).chain(ranks.iter().map(|(_, state)| *state)).collect()
}

fn options(codec: &str) -> Options {
    let policy = codec.parse().unwrap();
    Options { policy, bucket_bytes: 8_000, seed: 7, ..Options::default() }
}

/// Names of trainings and their options.
fn trainings() -> Vec<(String, Options)> {
    let mut all = Vec::new();
    let mut add = |name: String, options: Options| all.push((name, options));
    for choice in thinwire_codec::all() {
        add(choice.to_string(), options(&choice.to_string()));
    }
    for algorithm in [Algorithm::Ring, Algorithm::Halving, Algorithm::Gather] {
        let algorithm = Some(algorithm.into());
        add(format!("none {algorithm:?}"), Options { algorithm, ..options("none") });
    }
    for codec in ["int8", "topk:0.05", "onebit", "powersgd:2", "powersgd:2:alternate"] {
        for feedback in
            [Feedback::Ef21, Feedback::Average { beta: 0.5 }, Feedback::Decay { factor: 0.5 }]
        {
            add(format!("{codec} {feedback}"), Options { feedback, ..options(codec) });
        }
        let momentum = Some(Momentum { clip: Some(3.0), warm_up_steps: 6, ..Momentum::default() });
        add(format!("{codec} momentum"), Options { momentum, ..options(codec) });
        let nesterov = Some(Momentum { nesterov: true, masking: false, ..Momentum::default() });
        let warmed = Options { warm_up_steps: 5, momentum: nesterov, ..options(codec) };
        add(format!("{codec} nesterov, warm-up"), warmed);
    }
    for text in ["onebit", "terngrad", "dgc"] {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/codecs");
        add(format!("{text}.codec"), options(&format!("{examples}/{text}.codec")));
    }
    all
}

/// A plan with another codec for every bucket that may have one.
fn stored_plan() -> Plan {
    let assignment = |codec: &str, algorithm: &str, partitions| Assignment {
        codec: codec.to_owned(),
        algorithm: algorithm.to_owned(),
        partitions,
    };
    let assignments = vec![
        assignment("int4", "two-shot", 2),
        assignment("onebit", "two-shot", 1),
        assignment("none", "two-shot", 1),
        assignment("int8", "gather", 3),
    ];
    Plan { predicted_s: vec![0.0; assignments.len()], assignments, ..Plan::default() }
}

fn line(name: &str, size: usize, hashes: &[u32]) -> (String, String) {
    let hashes: Vec<String> = hashes.iter().map(|hash| format!("{hash:08x}")).collect();
    (format!("{name}, {size} ranks"), hashes.join(" "))
}

#[test]
fn parameters_and_residuals_are_those_on_record() {
    let mut found = BTreeMap::new();
    for size in SIZES {
        for (name, options) in trainings() {
            found.extend([line(&name, size, &train(&options, size, None))]);
        }
        let stored = train(&options("auto"), size, Some(&stored_plan()));
        found.extend([line("auto from a stored plan", size, &stored)]);
        for choice in thinwire_codec::all() {
            if let Choice::Bytes(codec) = &choice {
                let dtypes = if codec.is_raw() { &DType::ALL[..3] } else { &[DType::F32][..] };
                for dtype in dtypes {
                    let name = format!("shards of {dtype} by {choice}");
                    found.extend([line(&name, size, &shard(&choice, *dtype, size))]);
                }
            }
        }
    }
    let text: String = found.iter().map(|(name, hashes)| format!("{name}: {hashes}\n")).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testdata/golden.txt");
    if std::env::var("THINWIRE_GOLDEN").is_ok_and(|value| value == "update") {
        std::fs::write(file, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(file).unwrap();
    let differing: Vec<&str> = text.lines().filter(|line| !recorded.contains(*line)).collect();
    assert!(differing.is_empty(), "not as recorded:\n{}", differing.join("\n"));
    assert_eq!(recorded.lines().count(), text.lines().count());
}
