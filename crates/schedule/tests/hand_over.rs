//! The laws of the hand-over: joiners end with what holders have, in little more than the time of
//! receiving it once.

use proptest::prelude::*;
use thinwire_schedule::simulate::{Encoding, run};
use thinwire_schedule::{
    Cost, Operation, Schedule, Shape, Speeds, cost_of, hand_over, hand_over_partitions, verify,
};
use thinwire_wire::{HEADER_BYTES, World};

/// Every number of holders and of joiners that the laws are checked for.
fn roles() -> impl Iterator<Item = (usize, usize)> {
    (1..=6).flat_map(|holders| (0..=6).map(move |joiners| (holders, joiners)))
}

fn world(rank: usize, size: usize) -> World {
    World::new(rank as u32, size as u32).unwrap()
}

fn everyone(holders: usize, joiners: usize, shape: &Shape) -> Vec<Schedule> {
    let size = holders + joiners;
    (0..size).map(|rank| hand_over(holders, world(rank, size), shape)).collect()
}

fn shapes() -> [Shape; 6] {
    [(0, 1, 1), (1, 1, 2), (7, 1, 1), (211, 1, 5), (211, 64, 2), (5003, 256, 3)]
        .map(|(length, block, partitions)| Shape { length, block, partitions })
}

/// Holders' values, and other ones of joiners.
fn values(holders: usize, joiners: usize, length: usize) -> Vec<Vec<f32>> {
    let held: Vec<f32> = (0..length).map(|i| i as f32 + 0.5).collect();
    let mut values = vec![held; holders];
    values.resize(holders + joiners, vec![-1.0; length]);
    values
}

fn identity(values: &[f32]) -> Vec<f32> {
    values.to_vec()
}

#[test]
fn every_hand_over_keeps_the_laws_of_schedules() {
    for shape in shapes() {
        for (holders, joiners) in roles() {
            let schedules = everyone(holders, joiners, &shape);
            assert_eq!(verify(&schedules), Ok(()), "{holders} to {joiners}, {shape:?}");
            assert!(schedules.iter().all(Schedule::in_place));
        }
    }
}

#[test]
fn joiners_end_with_the_values_of_the_holders_in_any_order() {
    for shape in shapes() {
        for (holders, joiners) in roles() {
            let schedules = everyone(holders, joiners, &shape);
            for seed in 0..8 {
                let through = Encoding::Through(&identity);
                let encoding = if seed < 4 { Encoding::InPlace } else { through };
                let mut values = values(holders, joiners, shape.length);
                run(&schedules, &mut values, encoding, seed).unwrap();
                let all = values.iter().all(|held| *held == values[0]);
                assert!(all, "{holders} to {joiners}, {shape:?}, {encoding:?}, seed {seed}");
                assert!(values[0].iter().all(|value| *value >= 0.0), "holders keep theirs");
            }
        }
    }
}

#[test]
fn holders_without_joiners_do_nothing() {
    for holders in 1..=6 {
        for schedule in everyone(holders, 0, &shapes()[3]) {
            assert!(schedule.tasks.is_empty());
        }
    }
}

/// Elements that a rank sends and receives.
fn traffic(schedule: &Schedule) -> (usize, usize) {
    let elements = |sent: bool| {
        let counts = |operation: &Operation| match operation {
            Operation::Send { slot, .. } if sent => schedule.slots[slot.index()],
            Operation::Recv { slot, .. } if !sent => schedule.slots[slot.index()],
            _ => 0,
        };
        schedule.tasks.iter().map(|task| counts(&task.operation)).sum()
    };
    (elements(true), elements(false))
}

#[test]
fn a_joiner_receives_everything_once_and_nobody_sends_more() {
    // Divides by every number of chunks.
    let shape = Shape { length: 60 * 60, block: 1, partitions: 60 };
    for (holders, joiners) in roles() {
        for (rank, schedule) in everyone(holders, joiners, &shape).iter().enumerate() {
            let direct = joiners <= holders;
            let sent = match rank < holders {
                true if direct => shape.length * joiners / holders,
                true => shape.length / holders,
                false if direct => 0,
                false => shape.length * (joiners - 1) / joiners,
            };
            let received = if rank < holders { 0 } else { shape.length };
            assert_eq!(traffic(schedule), (sent, received), "{holders} to {joiners}, {rank}");
        }
    }
}

/// A link of 1 Gbit/s and 1 ms between processors that take no time.
const LINK: Speeds = Speeds {
    latency_s: 1e-3,
    bytes_per_s: 125e6,
    encode_per_s: f64::INFINITY,
    decode_per_s: f64::INFINITY,
    merge_per_s: f64::INFINITY,
    task_overhead_s: 0.0,
};

/// Hands `bytes` over as `collective` does, where an element is a byte.
fn bytes_cost(holders: usize, joiners: usize, bytes: usize) -> Cost {
    let partitions = hand_over_partitions(holders, world(0, holders + joiners), bytes);
    let shape = Shape { length: bytes, block: 1, partitions };
    cost_of(&everyone(holders, joiners, &shape), &|bytes| bytes, &LINK)
}

#[test]
fn a_hand_over_takes_little_longer_than_receiving_once() {
    for megabytes in [16, 100, 3000] {
        let bytes = megabytes * 1_000_000;
        let once_s = bytes as f64 / LINK.bytes_per_s;
        for (holders, joiners) in (1..=6).flat_map(|h| [1, 2, 3, 6, 16].map(|j| (h, j))) {
            let ratio = bytes_cost(holders, joiners, bytes).seconds / once_s;
            let place = format!("{megabytes} MB, {holders} to {joiners}: {ratio}");
            assert!((1.0..1.2).contains(&ratio), "{place}");
        }
    }
}

#[test]
fn messages_are_bounded() {
    for bytes in [0, 1, 65_536, 10_000_000, 7_000_000_000] {
        for (holders, joiners) in roles() {
            let partitions = hand_over_partitions(holders, world(0, holders + joiners), bytes);
            let shape = Shape { length: bytes, block: 1, partitions };
            let parts = holders.max(joiners);
            let longest = (0..parts).map(|index| shape.chunk(partitions - 1, parts, index).len());
            assert!(longest.max() <= Some(4 << 20), "{bytes} bytes, {holders} to {joiners}");
            assert!(partitions <= 20 + bytes.div_ceil(4 << 20));
        }
    }
}

proptest! {
    #[test]
    fn any_split_hands_over(
        holders in 1_usize..7, joiners in 0_usize..9, length in 0_usize..4000,
        block in 1_usize..300, partitions in 1_usize..6, seed: u64,
    ) {
        let schedules = everyone(holders, joiners, &Shape { length, block, partitions });
        let mut found = values(holders, joiners, length);
        run(&schedules, &mut found, Encoding::InPlace, seed).unwrap();
        prop_assert!(found.iter().all(|held| *held == found[0]));
        let cost = cost_of(&schedules, &|elements| elements, &LINK);
        let received = if joiners == 0 { 0 } else { length as u64 };
        prop_assert_eq!(cost.received_bytes, received);
        prop_assert!(cost.sent_bytes <= received + (partitions * block * (holders + joiners)) as u64);
        prop_assert!(cost.egress_seconds * LINK.bytes_per_s
            <= (cost.sent_bytes + cost.messages * HEADER_BYTES as u64) as f64 + 1.0);
    }
}
