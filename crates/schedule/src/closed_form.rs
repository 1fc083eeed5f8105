//! Closed forms of the cost of direct and ring schedules if processors take no time.
//!
//! They serve worlds that are too large to simulate, and searches that ask for millions of costs. Law:
//! they equal [`cost_of`](crate::cost_of) of the schedules if all chunks are equally long and links
//! are alike. For a hierarchical reduce-scatter, added up over its levels, they equal
//! [`cost_in_units`](crate::cost_in_units).

use thinwire_wire::HEADER_BYTES;

use crate::Algorithm;

/// The messages that each rank sends; it receives the same number at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounds {
    /// Number of messages that follow one after the other, since each waits for the one before.
    pub in_sequence: f64,
    /// Messages sent.
    pub messages: f64,
    /// Payload of one message, in bytes.
    pub bytes: f64,
}

impl Rounds {
    /// Returns the rounds in which a rank sends a message to each of `others` ranks, all at once.
    pub const fn direct(others: f64, bytes: f64) -> Rounds {
        Rounds { in_sequence: 1.0, messages: others, bytes }
    }

    /// Returns the rounds in which `others` messages travel around a ring, one after the other.
    pub const fn ring(others: f64, bytes: f64) -> Rounds {
        Rounds { in_sequence: others, messages: others, bytes }
    }

    /// Returns the bytes that a rank sends, headers included.
    pub fn wire_bytes(&self) -> f64 {
        self.messages * (self.bytes + HEADER_BYTES as f64)
    }

    /// Returns the seconds on links with this latency, and with this rate in bytes per second for each
    /// rank.
    pub fn seconds(&self, latency_s: f64, bytes_per_s: f64) -> f64 {
        self.in_sequence * latency_s + self.wire_bytes() / bytes_per_s
    }
}

/// Returns the number of messages of a flat all-reduce among `size` ranks that follow one after the
/// other, since each waits for the one before.
pub fn in_sequence(algorithm: Algorithm, size: usize) -> f64 {
    match algorithm {
        Algorithm::Ring => 2.0 * (size as f64 - 1.0),
        Algorithm::Halving => 2.0 * f64::from(size.ilog2()),
        Algorithm::TwoShot => 2.0,
        Algorithm::Gather => 1.0,
        Algorithm::RingGather => size as f64 - 1.0,
        Algorithm::Trees(trees) => 2.0 * trees.depth() as f64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_wire::World;

    use super::*;
    use crate::{
        Levels, Schedule, Shape, Speeds, Summation, all_gather, all_to_all, cost, cost_in_units,
        cost_of, reduce_scatter,
    };

    fn speeds(latency_s: f64, bytes_per_s: f64) -> Speeds {
        let free = f64::INFINITY;
        let (encode_per_s, decode_per_s, merge_per_s) = (free, free, free);
        let task_overhead_s = 0.0;
        Speeds { latency_s, bytes_per_s, encode_per_s, decode_per_s, merge_per_s, task_overhead_s }
    }

    fn everyone(size: usize, schedule: impl Fn(World) -> Schedule) -> Vec<Schedule> {
        (0..size as u32).map(|rank| schedule(World::new(rank, size as u32).unwrap())).collect()
    }

    fn raw(elements: usize) -> usize {
        4 * elements
    }

    proptest! {
        #[test]
        fn closed_forms_equal_the_schedules(
            size in 2_usize..9, chunk in 1_usize..5000, latency_s in 1e-6..1e-2, rate in 1e6..1e10,
        ) {
            let (speeds, close) = (speeds(latency_s, rate), |rounds: Rounds, simulated: f64| {
                (rounds.seconds(latency_s, rate) / simulated - 1.0).abs() < 1e-9
            });
            let shape = Shape { length: size * chunk, block: 1, partitions: 1 };
            let simulated = |schedules: Vec<Schedule>| cost_of(&schedules, &raw, &speeds).seconds;
            let (others, bytes) = (size as f64 - 1.0, 4.0 * chunk as f64);
            let (direct, ring) = (Rounds::direct(others, bytes), Rounds::ring(others, bytes));
            prop_assert!(close(direct, simulated(everyone(size, |w| reduce_scatter(w, &shape)))));
            prop_assert!(close(direct, simulated(everyone(size, |w| all_gather(w, &shape)))));
            let parts = vec![chunk; size];
            prop_assert!(close(direct, simulated(everyone(size, |w| all_to_all(w, &parts, &parts)))));
            let reduce = |algorithm| cost(algorithm, size, &shape, &raw, &speeds).seconds / 2.0;
            prop_assert!(close(direct, reduce(Algorithm::TwoShot)));
            prop_assert!(close(ring, reduce(Algorithm::Ring)));
        }

        #[test]
        fn levels_add_up(
            unit in 1_usize..5, units in 1_usize..5, chunk in 1_usize..500, rate in 1e6..1e9,
        ) {
            let size = unit * units;
            let (within, between) = (speeds(1e-5, 10.0 * rate), speeds(1e-3, rate));
            let hierarchy = Summation { unit, algorithm: Algorithm::TwoShot };
            let schedules = everyone(size, |w| hierarchy.reduce_scatter(w, size * chunk));
            let levels = Levels { unit, within: &within, between: &between, rates: None };
            let simulated = cost_in_units(&schedules, &raw, &levels).seconds;
            let level = |members: usize, bytes: usize, speeds: &Speeds| match members {
                1 => 0.0,
                _ => Rounds::direct(members as f64 - 1.0, 4.0 * bytes as f64)
                    .seconds(speeds.latency_s, speeds.bytes_per_s),
            };
            let closed = level(unit, units * chunk, &within) + level(units, chunk, &between);
            prop_assert!((closed - simulated).abs() <= 1e-9 * closed, "{closed} {simulated}");
        }
    }
}
