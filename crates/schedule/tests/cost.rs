//! What collective operations cost, against closed formulas.

use proptest::prelude::*;
use thinwire_schedule::{
    Algorithm, Cost, Operation, Rates, Schedule, Shape, Slot, Speeds, Task, Trees, cost, cost_of,
    cost_of_trees,
};
use thinwire_wire::{HEADER_BYTES, Rank};

const BYTES_PER_S: f64 = 12.5e6;

/// A link of 100 Mbit/s between processors that take no time.
const LINK: Speeds = Speeds {
    latency_s: 0.0,
    bytes_per_s: BYTES_PER_S,
    encode_per_s: f64::INFINITY,
    decode_per_s: f64::INFINITY,
    merge_per_s: f64::INFINITY,
    task_overhead_s: 0.0,
};

/// The same with processors as slow as codecs can be.
const SLOW: Speeds = Speeds {
    latency_s: 1e-4,
    encode_per_s: 80e6,
    decode_per_s: 100e6,
    merge_per_s: 90e6,
    task_overhead_s: 5e-6,
    ..LINK
};

fn raw(elements: usize) -> usize {
    4 * elements
}

fn int8(elements: usize) -> usize {
    elements + 4 * elements.div_ceil(256)
}

fn shape(length: usize, partitions: usize) -> Shape {
    Shape { length, block: 1, partitions }
}

fn raw_cost(algorithm: Algorithm, size: usize, length: usize, speeds: &Speeds) -> Cost {
    cost(algorithm, size, &shape(length, 1), &raw, speeds)
}

/// Messages that a rank sends, one after the other where it waits for others, and its bytes.
fn formula(algorithm: Algorithm, size: usize, length: usize) -> (u64, u64) {
    let (n, log) = (size as u64, u64::from(size.ilog2()));
    let bytes = 4 * length as u64;
    match algorithm {
        Algorithm::Ring | Algorithm::TwoShot => (2 * (n - 1), 2 * (n - 1) * bytes / n),
        Algorithm::Halving => (log + n - 1, 2 * (n - 1) * bytes / n),
        Algorithm::Gather | Algorithm::RingGather => (n - 1, (n - 1) * bytes),
        Algorithm::Trees(trees) => unreachable!("{trees} is not in the list of all"),
    }
}

fn assert_close(left: f64, right: f64, tolerance: f64) {
    assert!((left - right).abs() <= tolerance * right.abs(), "{left} is not {right}");
}

#[test]
fn bytes_are_those_of_the_formulas() {
    for algorithm in Algorithm::ALL {
        for size in
            (1..=17).filter(|n| algorithm != Algorithm::Halving || usize::is_power_of_two(*n))
        {
            let length = 1000 * size;
            let found = raw_cost(algorithm, size, length, &LINK);
            let expected = formula(algorithm, size, length);
            assert_eq!((found.messages, found.sent_bytes), expected, "{algorithm} of {size}");
            assert_eq!(found.received_bytes, found.sent_bytes);
        }
    }
}

#[test]
fn a_host_carries_its_guest_twice() {
    let found = raw_cost(Algorithm::Halving, 6, 4000, &LINK);
    assert_eq!(found.sent_bytes, 16_000 * 3 / 2 + 16_000);
    assert_eq!(found.received_bytes, found.sent_bytes);
}

#[test]
fn without_latency_and_work_time_is_bytes_over_bandwidth() {
    for algorithm in Algorithm::ALL {
        for size in [2, 4, 8, 16] {
            let found = raw_cost(algorithm, size, 10_000 * size, &LINK);
            let (messages, bytes) = formula(algorithm, size, 10_000 * size);
            let wire_bytes = bytes + messages * HEADER_BYTES as u64;
            assert_close(found.seconds, wire_bytes as f64 / BYTES_PER_S, 1e-9);
            assert_close(found.egress_seconds, found.seconds, 1e-9);
            assert_close(found.ingress_seconds, found.seconds, 1e-9);
        }
    }
}

#[test]
fn the_ring_tends_to_the_bandwidth_bound() {
    for size in [2, 3, 5, 8] {
        for partitions in [1, 4] {
            let length = 1_000_003;
            let bound = 2.0 * (size as f64 - 1.0) / size as f64 * 4.0 * length as f64 / BYTES_PER_S;
            let found = cost(Algorithm::Ring, size, &shape(length, partitions), &raw, &LINK);
            assert_close(found.seconds, bound, 1e-3);
        }
    }
}

#[test]
fn latency_is_paid_once_a_step() {
    let steps = |algorithm, size: usize| match algorithm {
        Algorithm::Ring => 2 * (size - 1),
        Algorithm::Halving => 2 * size.ilog2() as usize,
        Algorithm::TwoShot => 2,
        Algorithm::Gather => 1,
        Algorithm::RingGather => size - 1,
        Algorithm::Trees(trees) => unreachable!("{trees} is not in the list of all"),
    };
    for (algorithm, size) in Algorithm::ALL.into_iter().flat_map(|a| [2, 4, 8].map(|n| (a, n))) {
        let far = Speeds { latency_s: 0.5, ..LINK };
        let near = raw_cost(algorithm, size, 800, &LINK).seconds;
        let found = raw_cost(algorithm, size, 800, &far).seconds;
        let expected = near + 0.5 * steps(algorithm, size) as f64;
        // Messages to different partners leave one after the other, then travel at once.
        assert_close(found, expected, 1e-3);
    }
}

#[test]
fn work_is_paid_by_the_element() {
    let speeds = Speeds { bytes_per_s: f64::INFINITY, ..SLOW };
    let found = raw_cost(Algorithm::TwoShot, 4, 40_000, &speeds);
    let bytes = 160_000.0;
    let work = bytes / 80e6 + 0.75 * bytes / 90e6 + bytes / 100e6;
    let tasks = 3 * 2 + 3 * 2 + 1 + 3 + 3 + 4;
    assert_close(found.cpu_seconds, work + f64::from(tasks) * 5e-6, 1e-9);
    assert!(found.seconds >= found.cpu_seconds);
}

#[test]
fn partitions_overlap_work_and_wire() {
    for algorithm in Algorithm::ALL {
        let whole = cost(algorithm, 4, &shape(1 << 20, 1), &int8, &SLOW);
        let pipelined = cost(algorithm, 4, &shape(1 << 20, 8), &int8, &SLOW);
        assert!(pipelined.seconds < 0.85 * whole.seconds, "{algorithm}: {pipelined:?} {whole:?}");
    }
}

/// Three messages of a thousand raw elements each, as (source, target), that nothing delays.
fn three_messages(ends: [(u32, u32); 3]) -> Cost {
    let mut schedules = vec![Schedule::default(); 4];
    let mut push = |rank: u32, operation: &dyn Fn(Slot) -> Operation| {
        let Schedule { tasks, slots, .. } = &mut schedules[rank as usize];
        let operation = operation(Slot(slots.len() as u32));
        tasks.push(Task { operation, after: vec![], result: false });
        slots.push(1000);
    };
    for (source, target) in ends {
        push(source, &|slot| Operation::Send { slot, to: Rank(target), message: 0 });
        push(target, &|slot| Operation::Recv { slot, from: Rank(source), message: 0 });
    }
    cost_of(&schedules, &raw, &LINK)
}

#[test]
fn either_side_of_the_network_takes_one_message_at_a_time() {
    let message_s = (4000 + HEADER_BYTES) as f64 / BYTES_PER_S;
    let incast = three_messages([(1, 0), (2, 0), (3, 0)]);
    assert_close(incast.seconds, 3.0 * message_s, 1e-9);
    assert_eq!((incast.sent_bytes, incast.received_bytes), (4000, 12_000));
    let outcast = three_messages([(0, 1), (0, 2), (0, 3)]);
    assert_close(outcast.seconds, 3.0 * message_s, 1e-9);
    assert_eq!((outcast.sent_bytes, outcast.received_bytes), (12_000, 4000));
    let apart = three_messages([(0, 1), (1, 2), (2, 0)]);
    assert_close(apart.seconds, message_s, 1e-9);
}

#[test]
fn nothing_costs_nothing() {
    for algorithm in Algorithm::ALL {
        assert_eq!(cost(algorithm, 5, &shape(0, 3), &raw, &SLOW), Cost::default());
    }
}

proptest! {
    // Where processors are busy, this is no law: see the anomalies in the doc of `cost`. Links have some, too:
    // a message that arrives earlier may go before a more urgent one. The largest seen is 0.7 percent.
    #[test]
    fn more_bandwidth_is_never_slower_where_work_takes_no_time(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        size in 1_usize..=9,
        length in 1_usize..2_000_000,
        partitions in 1_usize..=6,
        bytes_per_s in 1e5..1e10,
        faster in 1.0..4.0,
    ) {
        let shape = shape(length, partitions);
        let far = Speeds { latency_s: 1e-4, ..LINK };
        let slow = cost(algorithm, size, &shape, &int8, &Speeds { bytes_per_s, ..far });
        let speeds = Speeds { bytes_per_s: bytes_per_s * faster, ..far };
        let fast = cost(algorithm, size, &shape, &int8, &speeds);
        prop_assert!(fast.seconds <= slow.seconds * 1.02, "{fast:?} after {slow:?}");
        prop_assert_eq!(fast.sent_bytes, slow.sent_bytes);
    }

    #[test]
    fn no_resource_is_busier_than_the_whole(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        size in 1_usize..=9,
        length in 0_usize..1_000_000,
        partitions in 1_usize..=6,
    ) {
        let found = cost(algorithm, size, &shape(length, partitions), &int8, &SLOW);
        for busy in [found.cpu_seconds, found.egress_seconds, found.ingress_seconds] {
            prop_assert!(busy <= found.seconds * 1.000001);
        }
    }
}

#[test]
fn a_slow_rank_holds_nobody_up_for_longer_than_its_own_values_take() {
    let rates = Rates::new(4, |_, high| if high == 3 { 1e6 } else { 4e6 });
    let speeds = |bytes_per_s| Speeds {
        latency_s: 0.0,
        bytes_per_s,
        encode_per_s: f64::INFINITY,
        decode_per_s: f64::INFINITY,
        merge_per_s: f64::INFINITY,
        task_overhead_s: 0.0,
    };
    let shape = Shape { length: 1 << 20, block: 1, partitions: 32 };
    let raw = |elements: usize| 4 * elements;
    let bound_s = (4 << 20) as f64 * rates.bound();
    let over =
        |trees: Trees| cost_of_trees(&trees, &shape, &raw, &speeds(4e6), &rates).seconds / bound_s;
    let trees = rates.stars().unwrap();
    // Sums wait for the contributions of fast ranks to each other, since messages leave one after the other.
    assert!((1.0..1.2).contains(&over(trees)), "{} {trees}", over(trees));
    // All owners alike take as long as everybody at the slow rank's rate.
    let equal = Trees::parse("1*0.0.0.0+1*1.1.1.1+1*2.2.2.2+1*3.3.3.3").unwrap();
    let alike = cost(Algorithm::TwoShot, 4, &shape, &raw, &speeds(1e6)).seconds / bound_s;
    assert!((over(equal) / alike - 1.0).abs() < 0.05, "{} {alike}", over(equal));
    // Where all links are alike, rates are those of the speeds.
    let (alike, speeds) = (Rates::new(4, |_, _| 1e6), speeds(1e6));
    let flat = cost(Algorithm::TwoShot, 4, &shape, &raw, &speeds);
    let over_trees = cost_of_trees(&equal, &shape, &raw, &speeds, &alike);
    assert!((over_trees.seconds / flat.seconds - 1.0).abs() < 0.03, "{over_trees:?} {flat:?}");
    assert_eq!(over_trees.sent_bytes, flat.sent_bytes);
}
