//! Sums of values in the memory of a device that finishes its work late.
//!
//! Law: every rank has the bits that it has when the values lie in host memory, whatever the order in which
//! the device does its work, also when some ranks have a device and others do not.

use std::sync::Arc;

use proptest::prelude::*;
use thinwire_codec::{Choice, Codec};
use thinwire_collective::{Address, Buffer, Group, Program, Run};
use thinwire_device::Region;
use thinwire_schedule::{Algorithm, Shape, Summation};
use thinwire_testkit::delayed::Delayed;
#[cfg(target_os = "linux")]
use thinwire_testkit::simulated::Simulated;
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::Rank;

/// Codecs of each kind: raw, casts, blocks, signs, sparse, of variable length, and random ones.
const CODECS: [&str; 10] = [
    "none",
    "f16",
    "int8",
    "int4:stochastic",
    "onebit",
    "topk:0.1",
    "blocktopk:1/16:ecsq:0.5",
    "ecsq:1",
    "lossless",
    "natural",
];
const STEPS: u64 = 2;
const BUCKETS: u32 = 3;

/// What to run on every rank.
#[derive(Clone, Debug)]
struct Case {
    codec: &'static str,
    summation: Summation,
    ranks: usize,
    partitions: usize,
    elements: usize,
    seed: u64,
}

/// Sums and residuals of every bucket of the last step.
type Results = Vec<[Vec<u32>; 2]>;

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name) {
        Ok(Choice::Bytes(codec)) => codec,
        other => panic!("{name} is {other:?}"),
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let algorithms = [Algorithm::Ring, Algorithm::TwoShot, Algorithm::Gather];
    let codecs = prop::sample::select(CODECS.to_vec());
    let ways = (prop::sample::select(algorithms.to_vec()), 1_usize..=2);
    (codecs, ways, 1_usize..=2, 1_usize..=3, 0_usize..2000, any::<u64>()).prop_map(
        |(codec, (algorithm, unit), units, partitions, elements, seed)| {
            let summation = Summation { unit, algorithm };
            Case { codec, summation, ranks: unit * units, partitions, elements, seed }
        },
    )
}

/// Runs the steps of a rank on values that `place` puts into memory and `fetch` reads.
fn steps<V: Buffer>(
    group: &mut Group,
    case: &Case,
    place: impl Fn(&[f32]) -> V,
    fetch: impl Fn(&V) -> Vec<f32>,
) -> Results {
    let (world, codec) = (group.world(), codec(case.codec));
    let shape = Shape { length: case.elements, block: codec.block(), partitions: case.partitions };
    let schedule = case.summation.all_reduce(world, &shape);
    let program = Program::new(schedule, case.elements, Arc::clone(&codec));
    let is_host = place(&[]).device().is_none();
    let program = Arc::new(if is_host { program } else { program.on_device() });
    let mut residuals: Vec<_> = (0..BUCKETS)
        .map(|_| program.feedback().then(|| place(&vec![0.0; case.elements])))
        .collect();
    let mut results = Results::new();
    for step in 0..STEPS {
        let mut runs: Vec<Run<V>> = (0..BUCKETS)
            .map(|tensor| {
                let address = Address { step, tensor, seed: case.seed, operation: "all_reduce" };
                let values = values(case, world.rank(), step, tensor);
                let residual = residuals[tensor as usize].take();
                Run::new(Arc::clone(&program), address, world, place(&values), residual)
            })
            .collect();
        group.complete(&mut runs).unwrap();
        results.clear();
        for (tensor, run) in runs.into_iter().enumerate() {
            let finite = run.is_finite();
            assert!(finite, "finite values of {case:?}");
            let (sum, residual) = match program.feedback() {
                true => run.commit().map(|(sum, residual)| (sum, Some(residual))).unwrap(),
                false => run.into_parts(),
            };
            let bits = |values: &V| fetch(values).iter().map(|value| value.to_bits()).collect();
            let kept = residual.as_ref().map_or_else(Vec::new, bits);
            results.push([bits(&sum), kept]);
            residuals[tensor] = residual;
        }
    }
    results
}

fn values(case: &Case, rank: Rank, step: u64, tensor: u32) -> Vec<f32> {
    let phase = rank.0 as f32 + 0.3 * step as f32 + 7.0 * tensor as f32;
    (0..case.elements).map(|i| (i as f32 * 0.37 + phase).sin()).collect()
}

/// Device of a rank, which makes memory for values.
trait Memory {
    fn region(&self, values: &[f32]) -> Region;
}

impl Memory for Delayed {
    fn region(&self, values: &[f32]) -> Region {
        Delayed::region(self, values)
    }
}

#[cfg(target_os = "linux")]
impl Memory for Simulated {
    fn region(&self, values: &[f32]) -> Region {
        Simulated::region(self, values)
    }
}

/// Runs a case; the first ranks have their values on the devices that `device` makes by a seed.
fn run<M: Memory>(case: &Case, devices: usize, device: impl Fn(u64) -> M + Sync) -> Vec<Results> {
    testkit::spawn(Network::Mem, case.ranks, |link| {
        let mut group = Group::new(link);
        let rank = group.world().rank();
        if rank.index() >= devices {
            return steps(&mut group, case, <[f32]>::to_vec, Clone::clone);
        }
        let device = device(case.seed ^ u64::from(rank.0));
        let fetch = |region: &Region| {
            let mut values = vec![0.0; region.len()];
            region.device().read(region, &mut values);
            values
        };
        steps(&mut group, case, |values| device.region(values), fetch)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn results_are_those_of_host_memory(case in cases()) {
        let expected = run(&case, 0, Delayed::new);
        for devices in [case.ranks, case.ranks - 1] {
            let found = run(&case, devices, Delayed::new);
            prop_assert_eq!(found, expected.clone(), "{} devices", devices);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn results_on_cuda_are_those_of_host_memory(case in cases()) {
        let Some(_) = Simulated::new(0) else { return Ok(()) };
        let has_kernels = thinwire_device::cuda::kernel::kernels(codec(case.codec).as_ref()).is_some();
        prop_assume!(has_kernels);
        let expected = run(&case, 0, Delayed::new);
        let simulated = |seed| Simulated::new(seed).expect("it was there before");
        let found = run(&case, case.ranks, simulated);
        prop_assert_eq!(found, expected);
    }
}
