//! Gradients in the memory of a device that finishes its work late.
//!
//! Law: averages, outcomes and saved states are those of gradients in host memory, bit for bit, whatever the
//! order in which the device does its work, with every codec, feedback and momentum, and when some ranks or
//! some gradients are on a device and others are not.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use thinwire_device::Region;
use thinwire_sync::{
    Feedback, Gradient, Momentum, Options, Outcome, Parameter, Policy, State, Synchronizer, Target,
};
use thinwire_testkit::delayed::Delayed;
#[cfg(target_os = "linux")]
use thinwire_testkit::simulated::Simulated;
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::random::Key;

const CODECS: [&str; 15] = [
    "none",
    "f16",
    "bf16",
    "int8",
    "int4",
    "int8:stochastic",
    "int2",
    "onebit",
    "topk:0.1",
    "e4m3",
    "ecsq:1",
    "lossless",
    "powersgd:2",
    "powersgd:2:alternate",
    "intsgd",
];
const STEPS: u64 = 5;
/// A step in which one rank has a gradient that is not finite, or nearly so.
const SKIPPED: u64 = 2;

#[derive(Clone, Debug)]
struct Case {
    codec: &'static str,
    feedback: Feedback,
    has_momentum: bool,
    shards: bool,
    ranks: usize,
    bucket_bytes: usize,
    seed: u64,
    /// The part of the gradients that lie on a device, out of 4.
    quarters: u32,
    /// The ranks from this one on have all gradients in host memory.
    devices: usize,
}

/// What a rank has seen: outcomes, and the bits of averages and of the state.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    outcomes: Vec<Outcome>,
    averages: Vec<Vec<Vec<u32>>>,
    state: Vec<(String, Vec<u32>)>,
    faults: Vec<Option<String>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let feedback = [
        Feedback::Classic,
        Feedback::Classic,
        Feedback::Ef21,
        Feedback::Average { beta: 0.5 },
        Feedback::Decay { factor: 0.5 },
    ];
    (
        prop::sample::select(CODECS.to_vec()),
        prop::sample::select(feedback.to_vec()),
        prop::bool::weighted(0.2),
        any::<bool>(),
        1_usize..=3,
        prop::sample::select(vec![64, 1 << 12, 1 << 20]),
        any::<u64>(),
        1_u32..=4,
        1_usize..=3,
    )
        .prop_map(
            |(
                codec,
                feedback,
                has_momentum,
                shards,
                ranks,
                bucket_bytes,
                seed,
                quarters,
                devices,
            )| {
                // A shard is exchanged by a codec of bytes.
                let shards = shards && !codec.starts_with("powersgd") && codec != "intsgd";
                Case {
                    codec,
                    feedback,
                    has_momentum,
                    shards,
                    ranks,
                    bucket_bytes,
                    seed,
                    quarters,
                    devices,
                }
            },
        )
        .prop_filter("options that are refused", is_taken)
}

fn options(case: &Case) -> Options {
    Options {
        policy: case.codec.parse::<Policy>().unwrap(),
        feedback: case.feedback,
        momentum: case.has_momentum.then(Momentum::default),
        bucket_bytes: case.bucket_bytes,
        underway_max: NonZeroUsize::new(2),
        seed: case.seed,
        ..Options::default()
    }
}

/// Whether a synchroniser takes this combination of options.
fn is_taken(case: &Case) -> bool {
    let link = thinwire_link::mem::alone();
    Synchronizer::start(link, parameters(case), options(case)).is_ok()
}

fn parameters(case: &Case) -> Vec<Parameter> {
    let shapes: [&[usize]; 5] = [&[12, 30], &[12], &[40, 6], &[18, 18], &[6]];
    let parameter = |(index, shape): (usize, &&[usize])| {
        let target = if case.shards { Target::Shard } else { Target::Whole };
        Parameter { target, ..Parameter::new(&format!("p{index}"), shape) }
    };
    shapes.iter().enumerate().map(parameter).collect()
}

fn gradient(case: &Case, rank: u32, step: u64, index: usize, elements: usize) -> Vec<f32> {
    let key = Key { seed: case.seed ^ u64::from(rank), step, tensor: index as u32 };
    let mut values: Vec<f32> = (0..elements as u64).map(|at| key.normal(at)).collect();
    if step == SKIPPED && rank == 0 && index as u64 == case.seed % 5 {
        // The last one is finite, but too large for codecs with feedback.
        let spoilt = [f32::INFINITY, f32::NAN, 3e30][(case.seed / 5 % 3) as usize];
        values[(case.seed / 15) as usize % elements] = spoilt;
    }
    values
}

/// Makes memory of a device for values.
type Memory<'a> = Box<dyn Fn(&[f32]) -> Region + 'a>;

fn steps(case: &Case, link: thinwire_link::Link, device: Option<Memory<'_>>) -> Seen {
    let rank = link.world().rank();
    let parameters = parameters(case);
    let mut sync = Synchronizer::start(link, parameters.clone(), options(case)).unwrap();
    let mut seen =
        Seen { outcomes: Vec::new(), averages: Vec::new(), state: Vec::new(), faults: Vec::new() };
    for step in 0..STEPS {
        sync.begin(step).unwrap();
        // They outlive the step, as those of a framework do.
        let mut regions: Vec<Region> = Vec::new();
        for (index, parameter) in parameters.iter().enumerate() {
            let values = gradient(case, rank.0, step, index, parameter.elements());
            let key = Key { seed: case.seed, step, tensor: 77 };
            let on_device = key.below(index as u64, 4) < case.quarters;
            match device.as_ref().filter(|_| on_device) {
                Some(device) => {
                    regions.push(device(&values));
                    sync.ready(index, Gradient::Device(&regions[regions.len() - 1])).unwrap();
                }
                None => sync.ready(index, &values).unwrap(),
            }
        }
        let outcome = sync.finish().unwrap();
        seen.outcomes.push(outcome);
        seen.faults.push(sync.fault().map(str::to_owned));
        let average = |index| match sync.gradient_on_device(index) {
            Some(region) => {
                assert!(!regions.is_empty(), "averages of host memory are there");
                let mut values = vec![0.0; region.len()];
                region.device().read(&region, &mut values);
                values
            }
            None => sync.gradient(index).to_vec(),
        };
        if outcome == Outcome::Averaged {
            let averages = (0..parameters.len()).map(average);
            seen.averages.push(averages.map(|values| bits(&values)).collect());
        }
    }
    let State { tensors, .. } = sync.state();
    seen.state = tensors.into_iter().map(|(name, (_, values))| (name, bits(&values))).collect();
    seen
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn run(case: &Case, devices: usize) -> Vec<Seen> {
    testkit::spawn(Network::Mem, case.ranks, |link| {
        let pair = [1, 2].map(|seed| Delayed::new(case.seed ^ seed));
        // Some gradients of a bucket are on another device than the first one.
        let memory: Memory<'_> =
            Box::new(move |values| pair[usize::from(values[0] > 1.0)].region(values));
        let has_device = link.world().rank().index() < devices;
        steps(case, link, has_device.then_some(memory))
    })
}

/// Runs a case with the gradients of all ranks on simulated CUDA devices.
#[cfg(target_os = "linux")]
fn run_on_cuda(case: &Case) -> Vec<Seen> {
    testkit::spawn(Network::Mem, case.ranks, |link| {
        let device = Simulated::new(case.seed).expect("it was there before");
        let seen = steps(case, link, Some(Box::new(|values| device.gradient(values))));
        assert_eq!(device.mistakes(), Vec::<String>::new());
        seen
    })
}

/// Compares what ranks have seen.
fn compare(found: &[Seen], expected: &[Seen]) -> Result<(), TestCaseError> {
    for (rank, (found, expected)) in found.iter().zip(expected).enumerate() {
        prop_assert_eq!(&found.outcomes, &expected.outcomes, "rank {}", rank);
        prop_assert_eq!(&found.faults, &expected.faults, "rank {}", rank);
        prop_assert!(found.averages == expected.averages, "averages of rank {rank} differ");
        prop_assert!(found.state == expected.state, "states of rank {rank} differ");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn averages_are_those_of_host_memory(case in cases()) {
        compare(&run(&case, case.devices), &run(&case, 0))?;
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn averages_on_cuda_are_those_of_host_memory(case in cases()) {
        let Some(_) = Simulated::new(0) else { return Ok(()) };
        compare(&run_on_cuda(&case), &run(&case, 0))?;
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_that_fails_ends_the_group_and_blames_no_peer() {
    let Some(_) = Simulated::new(0) else { return };
    let errors = errors_of(Simulated::break_down);
    assert!(errors[0].contains("a device has failed: CUDA error"), "{errors:?}");
}

#[test]
fn a_device_without_memory_ends_the_group_and_says_what_to_do() {
    let Some(_) = Simulated::new(0) else { return };
    let errors = errors_of(Simulated::exhaust);
    let told =
        "CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY) (hint: the exchange keeps 4 bytes per parameter";
    assert!(errors[0].contains(told), "{errors:?}");
}

/// Errors of both ranks of a group, of which rank 0's device fails before the first step in which gradients
/// come from devices.
fn errors_of(fail: fn(&Simulated)) -> Vec<String> {
    let errors = testkit::spawn(Network::Mem, 2, |link| {
        let rank = link.world().rank().0;
        let device = Simulated::new(u64::from(rank)).expect("it was there before");
        let policy = "int8".parse::<Policy>().unwrap();
        let parameters = vec![Parameter::new("p", &[64, 64])];
        let options = Options { policy, ..Options::default() };
        let mut sync = Synchronizer::start(link, parameters, options).unwrap();
        let (gradient, region) = ([1.0; 64 * 64], device.gradient(&[1.0; 64 * 64]));
        for step in 0.. {
            if step == 3 && rank == 0 {
                fail(&device);
            }
            sync.begin(step).unwrap();
            let gradient = match step {
                0..3 => Gradient::F32(&gradient),
                _ => Gradient::Device(&region),
            };
            let ended = sync.ready(0, gradient).and_then(|()| sync.finish());
            if let Err(error) = ended {
                return (step, error.to_string());
            }
        }
        unreachable!("steps end with the device")
    });
    // Rank 1 may still be waiting in the step before.
    assert!(errors[0].0 == 3 && (2..=3).contains(&errors[1].0), "{errors:?}");
    assert!(errors[1].1.contains("a device has failed"), "{errors:?}");
    errors.into_iter().map(|(_, error)| error).collect()
}
