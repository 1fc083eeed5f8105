//! What schedules compute, in every order in which they may run.

use proptest::prelude::*;
use thinwire_schedule::simulate::{Encoding, run};
use thinwire_schedule::{
    Algorithm, Law, Operation, Schedule, Shape, Slot, Task, Violation, all_gather, all_reduce,
    broadcast, reduce_scatter, verify,
};
use thinwire_wire::random::Key;
use thinwire_wire::{Rank, World};

const WORLDS: std::ops::RangeInclusive<u32> = 1..=17;

fn everyone(size: u32, schedule: impl Fn(World) -> Schedule) -> Vec<Schedule> {
    (0..size).map(|rank| schedule(World::new(rank, size).unwrap())).collect()
}

fn reduces(algorithm: Algorithm, size: u32, shape: &Shape) -> Vec<Schedule> {
    everyone(size, |world| all_reduce(algorithm, world, shape))
}

/// Every collective operation of the crate in a world of `size`.
fn collectives(size: u32, shape: &Shape) -> Vec<(String, Vec<Schedule>)> {
    let mut all: Vec<_> = Algorithm::ALL
        .iter()
        .map(|algorithm| (algorithm.to_string(), reduces(*algorithm, size, shape)))
        .collect();
    let root = Rank(size / 2);
    all.push(("broadcast".into(), everyone(size, |world| broadcast(root, world, shape))));
    all.push(("all-gather".into(), everyone(size, |world| all_gather(world, shape))));
    all.push(("reduce-scatter".into(), everyone(size, |world| reduce_scatter(world, shape))));
    all
}

fn shapes() -> [Shape; 6] {
    [(0, 1, 1), (1, 1, 2), (7, 1, 1), (211, 1, 5), (211, 256, 2), (5003, 256, 3)]
        .map(|(length, block, partitions)| Shape { length, block, partitions })
}

/// Whole numbers, whose sums are exact in any order.
fn ramp(size: u32, length: usize) -> Vec<Vec<f32>> {
    let value = |rank: u32, i: usize| ((i * 7 + rank as usize * 13) % 101) as f32 - 50.0;
    (0..size).map(|rank| (0..length).map(|i| value(rank, i)).collect()).collect()
}

fn normals(size: u32, length: usize, seed: u64) -> Vec<Vec<f32>> {
    let key = Key { seed, step: 0, tensor: 0 };
    let values = |key: Key| (0..length as u64).map(|i| key.normal(i)).collect();
    (0..size).map(|rank| values(key.for_rank(rank))).collect()
}

fn sums(values: &[Vec<f32>]) -> Vec<f64> {
    let sum = |i| values.iter().map(|values| f64::from(values[i])).sum();
    (0..values[0].len()).map(sum).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn identity(values: &[f32]) -> Vec<f32> {
    values.to_vec()
}

/// Rounds to bf16.
fn bf16(values: &[f32]) -> Vec<f32> {
    let round = |bits: u32| (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    values.iter().map(|value| f32::from_bits(round(value.to_bits()))).collect()
}

/// Rounds to 127 steps of the largest magnitude in each block of 256.
fn blocks(values: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| {
        let scale = block.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs())) / 127.0;
        block.iter().map(|x| (x / scale).round() * scale).collect::<Vec<_>>()
    };
    values.chunks(256).flat_map(block).collect()
}

#[test]
fn every_schedule_keeps_the_laws() {
    for shape in shapes() {
        for size in WORLDS {
            for (name, schedules) in collectives(size, &shape) {
                let verdict = verify(&schedules);
                assert_eq!(verdict, Ok(()), "{name} in a world of {size}, {shape:?}");
            }
        }
    }
}

#[test]
fn all_reduce_sums_in_any_order() {
    for shape in shapes() {
        for (size, algorithm) in WORLDS.flat_map(|size| Algorithm::ALL.map(|a| (size, a))) {
            let schedules = reduces(algorithm, size, &shape);
            let start = ramp(size, shape.length);
            let expected: Vec<f32> = sums(&start).into_iter().map(|sum| sum as f32).collect();
            for seed in 0..8 {
                let mut values = start.clone();
                let encoding = if schedules.iter().all(Schedule::in_place) && seed >= 4 {
                    Encoding::InPlace
                } else {
                    Encoding::Through(&identity)
                };
                run(&schedules, &mut values, encoding, seed).unwrap();
                for (rank, values) in values.iter().enumerate() {
                    assert_eq!(
                        values, &expected,
                        "{algorithm} in a world of {size}, {shape:?}, rank {rank}, {encoding:?}, seed {seed}"
                    );
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn all_ranks_end_bit_identical_whatever_the_order(
        size in WORLDS,
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        length in 0_usize..3000,
        block in prop::sample::select(&[1_usize, 256][..]),
        partitions in 1_usize..=5,
        seed in any::<u64>(),
    ) {
        let shape = Shape { length, block, partitions };
        let schedules = reduces(algorithm, size, &shape);
        let start = normals(size, length, seed);
        let codec = if block == 1 { bf16 } else { blocks };
        let mut first = start.clone();
        run(&schedules, &mut first, Encoding::Through(&codec), 0).unwrap();
        let mut second = start.clone();
        run(&schedules, &mut second, Encoding::Through(&codec), seed).unwrap();
        for values in first.iter().chain(&second) {
            prop_assert_eq!(bits(values), bits(&first[0]));
        }
        // Each of at most n + 1 roundings is off by at most 1/127 of the largest partial sum.
        let bound = f64::from(size + 1) * f64::from(size) * 5.0 / 127.0;
        for (value, sum) in first[0].iter().zip(sums(&start)) {
            prop_assert!((f64::from(*value) - sum).abs() < bound, "{value} instead of {sum}");
        }
    }

    #[test]
    fn raw_values_in_place_are_the_same_bits_as_copies(
        size in WORLDS,
        algorithm in prop::sample::select(&[Algorithm::Ring, Algorithm::Halving, Algorithm::TwoShot][..]),
        length in 0_usize..600,
        partitions in 1_usize..=5,
        seed in any::<u64>(),
    ) {
        let schedules = reduces(algorithm, size, &Shape { length, block: 1, partitions });
        let (mut copied, mut in_place) = (normals(size, length, 1), normals(size, length, 1));
        run(&schedules, &mut copied, Encoding::Through(&identity), 0).unwrap();
        run(&schedules, &mut in_place, Encoding::InPlace, seed).unwrap();
        for (one, other) in copied.iter().zip(&in_place) {
            prop_assert_eq!(bits(one), bits(other));
        }
    }
}

#[test]
fn a_world_of_one_loses_what_the_codec_loses() {
    let start = normals(1, 1000, 7);
    for algorithm in Algorithm::ALL {
        let mut values = start.clone();
        let schedules = reduces(algorithm, 1, &Shape { length: 1000, block: 1, partitions: 2 });
        run(&schedules, &mut values, Encoding::Through(&bf16), 0).unwrap();
        assert_eq!(values[0], bf16(&start[0]), "{algorithm}");
    }
}

#[test]
fn reduce_scatter_leaves_every_rank_the_sum_of_its_chunk() {
    for (shape, size) in shapes().iter().flat_map(|shape| WORLDS.map(move |size| (shape, size))) {
        let schedules = everyone(size, |world| reduce_scatter(world, shape));
        for (seed, encoding) in (0..).zip([Encoding::InPlace, Encoding::Through(&identity)]) {
            let mut values = ramp(size, shape.length);
            let expected = sums(&values);
            run(&schedules, &mut values, encoding, seed).unwrap();
            for (rank, values) in values.iter().enumerate() {
                for partition in 0..shape.partitions {
                    for i in shape.chunk(partition, size as usize, rank) {
                        assert_eq!(f64::from(values[i]), expected[i]);
                    }
                }
            }
        }
    }
}

#[test]
fn all_gather_leaves_every_rank_the_chunks_of_all() {
    for (shape, size) in shapes().iter().flat_map(|shape| WORLDS.map(move |size| (shape, size))) {
        let schedules = everyone(size, |world| all_gather(world, shape));
        for (seed, encoding) in (1..).zip([Encoding::InPlace, Encoding::Through(&bf16)]) {
            let start = ramp(size, shape.length);
            let mut values = start.clone();
            run(&schedules, &mut values, encoding, seed).unwrap();
            for partition in 0..shape.partitions {
                for (owner, held) in start.iter().enumerate() {
                    let chunk = shape.chunk(partition, size as usize, owner);
                    for values in &values {
                        assert_eq!(values[chunk.clone()], held[chunk.clone()]);
                    }
                }
            }
        }
    }
}

#[test]
fn broadcast_leaves_every_rank_the_encoded_values_of_the_root() {
    let shape = Shape { length: 211, block: 1, partitions: 3 };
    for (size, root) in WORLDS.flat_map(|size| (0..size).map(move |root| (size, root))) {
        let schedules = everyone(size, |world| broadcast(Rank(root), world, &shape));
        let start = normals(size, shape.length, 3);
        let mut values = start.clone();
        run(&schedules, &mut values, Encoding::Through(&bf16), u64::from(root)).unwrap();
        assert!(values.iter().all(|values| *values == bf16(&start[root as usize])));
        let mut values = start.clone();
        run(&schedules, &mut values, Encoding::InPlace, u64::from(root)).unwrap();
        assert!(values.iter().all(|values| *values == start[root as usize]));
    }
}

#[test]
fn everything_but_the_gathers_runs_in_place() {
    for size in WORLDS {
        for (name, schedules) in collectives(size, &shapes()[3]) {
            let in_place = schedules.iter().all(Schedule::in_place);
            assert_eq!(
                in_place,
                !name.ends_with("gather") || name == "all-gather" || size == 1,
                "{name} in a world of {size}"
            );
        }
    }
}

#[test]
fn gather_would_be_wrong_in_place() {
    let schedules = reduces(Algorithm::Gather, 3, &Shape { length: 5, block: 1, partitions: 1 });
    let wrong = (0..16).any(|seed| {
        let mut values = ramp(3, 5);
        let expected: Vec<_> = sums(&values).into_iter().map(|sum| sum as f32).collect();
        run(&schedules, &mut values, Encoding::InPlace, seed).unwrap();
        values.iter().any(|values| *values != expected)
    });
    assert!(wrong);
}

/// Whether a task comes after another by way of its dependencies.
fn waits_for(schedule: &Schedule, task: u32, other: u32) -> bool {
    task == other
        || schedule.tasks[task as usize].after.iter().any(|a| waits_for(schedule, *a, other))
}

#[test]
fn a_dropped_dependency_is_noticed() {
    let shape = Shape { length: 60, block: 1, partitions: 2 };
    for (name, schedules) in (1..=6).flat_map(|size| collectives(size, &shape)) {
        for (rank, schedule) in schedules.iter().enumerate() {
            for (index, task) in schedule.tasks.iter().enumerate() {
                for (dependency, other) in task.after.iter().enumerate() {
                    let mut broken = schedules.clone();
                    broken[rank].tasks[index].after.remove(dependency);
                    let implied = waits_for(&broken[rank], index as u32, *other);
                    let place = format!("{name}, rank {rank}, task {index}");
                    assert_eq!(verify(&broken).is_ok(), implied, "{place}");
                }
            }
        }
    }
}

/// The schedules of a two-shot in a world of two after `change` to those of rank 0.
fn broken(change: impl Fn(&mut Schedule)) -> Result<(), Violation> {
    let mut schedules = reduces(Algorithm::TwoShot, 2, &shapes()[2]);
    change(&mut schedules[0]);
    verify(&schedules)
}

#[test]
fn broken_laws_are_named() {
    let law = |change: &dyn Fn(&mut Schedule)| broken(change).unwrap_err().law;
    assert_eq!(law(&|s| s.tasks[0].after.push(3)), Law::WaitsForEarlier);
    assert_eq!(law(&|s| s.tasks[4].result = true), Law::ResultsLast);
    assert_eq!(law(&|s| s.tasks[5].operation = s.tasks[0].operation.clone()), Law::FilledOnce);
    assert_eq!(law(&|s| s.slots[2] += 1), Law::Length);
    assert_eq!(law(&|s| s.slots[1] += 1), Law::Length);
    let shorter = Operation::Merge { slot: Slot(2), range: 0..2 };
    assert_eq!(law(&|s| s.tasks[4].operation = shorter.clone()), Law::Length);
    assert_eq!(law(&|s| s.tasks.truncate(5)), Law::Matched);
    assert_eq!(law(&|s| s.tasks[4].after.clear()), Law::FilledOnce);
    assert_eq!(law(&|s| s.tasks[8].after.clear()), Law::Ordered);
    assert_eq!(law(&|s| s.tasks[7].after.truncate(1)), Law::Ordered);
    let twice = |s: &mut Schedule| {
        s.slots.push(s.slots[0]);
        let Operation::Encode { range, .. } = s.tasks[0].operation.clone() else { panic!() };
        let operation = Operation::Encode { range, slot: Slot(s.slots.len() as u32 - 1) };
        s.tasks.push(Task { operation, after: vec![7], result: true });
    };
    assert_eq!(law(&twice), Law::EncodedOnce);
}

#[test]
fn both_ends_of_a_message_have_one_length() {
    let task = |operation| Task { operation, after: vec![], result: false };
    let (slot, message) = (Slot(0), 0);
    let from = task(Operation::Recv { slot, from: Rank(1), message });
    let encode = task(Operation::Encode { range: 0..5, slot });
    let to = Task { after: vec![0], ..task(Operation::Send { slot, to: Rank(0), message }) };
    let receiver =
        |length| Schedule { tasks: vec![from.clone()], slots: vec![length], ..Schedule::default() };
    let sender = Schedule { tasks: vec![encode, to], slots: vec![5], ..Schedule::default() };
    assert_eq!(verify(&[receiver(5), sender.clone()]), Ok(()));
    let law = Law::Length;
    assert_eq!(verify(&[receiver(6), sender]), Err(Violation { rank: Rank(1), task: 1, law }));
}

#[test]
fn ranks_that_wait_for_each_other_are_noticed() {
    let peer = |other: u32| {
        let recv = Operation::Recv { slot: Slot(0), from: Rank(other), message: 0 };
        let send = Operation::Send { slot: Slot(0), to: Rank(other), message: 0 };
        let tasks = vec![
            Task { operation: recv, after: vec![], result: false },
            Task { operation: send, after: vec![0], result: false },
        ];
        Schedule { tasks, slots: vec![1], ..Schedule::default() }
    };
    let schedules = [peer(1), peer(0)];
    assert_eq!(verify(&schedules), Ok(()));
    let error = run(&schedules, &mut [vec![], vec![]], Encoding::InPlace, 0).unwrap_err();
    assert_eq!(error.to_string(), "task 0 of rank 0 waits for ever");
}
