//! What collectives take on a group, level by level.
//!
//! A reduce-scatter goes from the innermost level outwards, each level with what is left: with g
//! devices of a unit in the group, each of them talks to other units about 1/g of the bytes. An
//! all-gather goes the other way; an all-reduce is both. On one level this is the schedule of
//! crate `schedule`, direct or around a ring, in closed form. Law: equal to `schedule::cost` with
//! processors that take no time.
//!
//! | n bytes, f members of a level | steps | bytes sent |
//! |---|---|---|
//! | reduce-scatter, all-gather: direct | 1 | (f−1)/f · n |
//! | reduce-scatter, all-gather: ring | f−1 | (f−1)/f · n |
//! | all-to-all, what each device has being n | 1 | (f−1)/f · n |
//!
//! Our executor knows no levels in what it does not encode: a reduce-scatter is then flat, and sends
//! as an all-to-all does. With g devices of a unit in the group, each of them talks to other units
//! about all of its bytes but what stays in its own.

use thinwire_wire::HEADER_BYTES;

use super::group::{Group, Hop};
use crate::cluster::{Handling, Lane};

/// How the members of a level exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Everybody sends to everybody at once, level by level.
    Direct,
    /// Everybody sends to everybody at once, whatever lies between them.
    Flat,
    /// Around a ring, step by step.
    Ring,
}

impl Exchange {
    /// Seconds of a reduce-scatter of `bytes` on each device, or of an all-gather to as many.
    pub fn scatter_s(self, group: &Group, bytes: f64) -> f64 {
        match self {
            Exchange::Flat => self.all_to_all_s(group, bytes),
            _ => group.hops.iter().map(|hop| self.hop_s(hop, bytes / hop.inside)).sum(),
        }
    }

    /// The part of its bytes that a device sends over a hop of a group in a reduce-scatter: with all
    /// hops together (p−1)/p.
    pub(super) fn scattered(self, group: &Group, hop: &Hop) -> f64 {
        match self {
            Exchange::Flat => hop.inside * (hop.members - 1.0) / group.size as f64,
            _ => (hop.members - 1.0) / hop.members / hop.inside,
        }
    }

    /// Seconds of a device's own time in a reduce-scatter of `bytes`, or an all-gather to as many.
    pub(super) fn scatter_handling_s(self, group: &Group, bytes: f64, handling: &Handling) -> f64 {
        let hop = |hop: &Hop| match self {
            Exchange::Flat => {
                let others = hop.inside * (hop.members - 1.0);
                let message = bytes / group.size as f64 + HEADER_BYTES as f64;
                handling.seconds(others, others * message)
            }
            _ => hop_handling_s(hop, bytes / hop.inside, handling),
        };
        group.hops.iter().map(hop).sum()
    }

    /// Seconds of an all-reduce of `bytes` on each device.
    pub fn all_reduce_s(self, group: &Group, bytes: f64) -> f64 {
        2.0 * self.scatter_s(group, bytes)
    }

    /// Seconds in which every device sends all others their parts of its `bytes`.
    pub fn all_to_all_s(self, group: &Group, bytes: f64) -> f64 {
        let part = bytes / group.size as f64 + HEADER_BYTES as f64;
        let hop = |hop: &Hop| {
            let others = hop.inside * (hop.members - 1.0);
            hop.latency_s + others * part / hop.bytes_per_s
        };
        group.hops.iter().map(hop).sum()
    }

    /// Seconds of a reduce-scatter of `bytes` on each member of one level.
    fn hop_s(self, hop: &Hop, bytes: f64) -> f64 {
        let others = hop.members - 1.0;
        let direct = Lane { latency_s: hop.latency_s, bytes_per_s: hop.bytes_per_s };
        let (steps, lane) = match self {
            Exchange::Direct | Exchange::Flat => (1.0, direct),
            Exchange::Ring => (others, hop.ring.unwrap_or(direct)),
        };
        let message = bytes / hop.members + HEADER_BYTES as f64;
        steps * lane.latency_s + others * message / lane.bytes_per_s
    }
}

/// Seconds of a device's own time in a reduce-scatter on one level.
fn hop_handling_s(hop: &Hop, bytes: f64, handling: &Handling) -> f64 {
    let message = bytes / hop.members + HEADER_BYTES as f64;
    handling.seconds(hop.members - 1.0, (hop.members - 1.0) * message)
}

/// Seconds of one message.
pub fn message_s(hop: &Hop, bytes: f64) -> f64 {
    hop.latency_s + (bytes + HEADER_BYTES as f64) / hop.bytes_per_s
}

#[cfg(test)]
mod tests {
    use thinwire_schedule::{
        Algorithm, Schedule, Shape, Speeds, all_gather, all_to_all, cost, cost_of, reduce_scatter,
    };
    use thinwire_wire::World;

    use super::*;

    const LATENCY_S: f64 = 1e-4;
    const BYTES_PER_S: f64 = 1e8;

    fn speeds() -> Speeds {
        let free = f64::INFINITY;
        Speeds {
            latency_s: LATENCY_S,
            bytes_per_s: BYTES_PER_S,
            encode_per_s: free,
            decode_per_s: free,
            merge_per_s: free,
            task_overhead_s: 0.0,
        }
    }

    fn group(size: usize) -> Group {
        let members = size as f64;
        let hop = Hop {
            level: 0,
            members,
            inside: 1.0,
            latency_s: LATENCY_S,
            bytes_per_s: BYTES_PER_S,
            ring: None,
        };
        Group { size, hops: vec![hop] }
    }

    fn played(size: usize, schedule: impl Fn(World) -> Schedule) -> f64 {
        let worlds = (0..size as u32).map(|rank| World::new(rank, size as u32).unwrap());
        let schedules: Vec<_> = worlds.map(schedule).collect();
        cost_of(&schedules, &|elements| 4 * elements, &speeds()).seconds
    }

    #[test]
    fn closed_forms_equal_the_schedules() {
        for size in [2, 3, 4, 8] {
            let shape = Shape { length: size * 1000, block: 1, partitions: 1 };
            let bytes = 4.0 * shape.length as f64;
            let close = |closed: f64, played: f64, what: &str| {
                assert!(
                    (closed / played - 1.0).abs() < 1e-9,
                    "{what} of {size}: {closed} {played}"
                );
            };
            let reduce = |algorithm| cost(algorithm, size, &shape, &|n| 4 * n, &speeds()).seconds;
            let group = group(size);
            let direct = Exchange::Direct;
            close(
                direct.scatter_s(&group, bytes),
                played(size, |w| reduce_scatter(w, &shape)),
                "scatter",
            );
            close(
                direct.scatter_s(&group, bytes),
                played(size, |w| all_gather(w, &shape)),
                "gather",
            );
            close(direct.all_reduce_s(&group, bytes), reduce(Algorithm::TwoShot), "two-shot");
            close(Exchange::Ring.all_reduce_s(&group, bytes), reduce(Algorithm::Ring), "ring");
            let parts = vec![shape.length / size; size];
            let exchange = played(size, |world| all_to_all(world, &parts, &parts));
            close(direct.all_to_all_s(&group, bytes), exchange, "all-to-all");
        }
    }

    #[test]
    fn flat_exchanges_send_as_much_but_more_of_it_far_away() {
        let hop = |level, members, inside, bytes_per_s| Hop {
            level,
            members,
            inside,
            latency_s: 0.0,
            bytes_per_s,
            ring: None,
        };
        let one = group(4);
        let [flat, direct] =
            [Exchange::Flat, Exchange::Direct].map(|one_s| one_s.scatter_s(&one, 1e6));
        assert!((flat / direct - 1.0).abs() < 1e-12, "{flat} {direct}");
        let two = Group { size: 32, hops: vec![hop(0, 8.0, 1.0, 1e12), hop(1, 4.0, 8.0, 1e9)] };
        for exchange in [Exchange::Flat, Exchange::Direct] {
            let parts: Vec<f64> =
                two.hops.iter().map(|hop| exchange.scattered(&two, hop)).collect();
            assert!((parts.iter().sum::<f64>() - 31.0 / 32.0).abs() < 1e-12, "{parts:?}");
        }
        let expected = 24.0 / 32.0 * 1e9 / 1e9;
        let found = Exchange::Flat.scatter_s(&two, 1e9);
        assert!((found / expected - 1.0).abs() < 1e-2, "{found}, expected {expected}");
    }

    #[test]
    fn outer_levels_carry_what_inner_ones_leave() {
        let hop = |members, inside, bytes_per_s| Hop {
            level: 0,
            members,
            inside,
            latency_s: 0.0,
            bytes_per_s,
            ring: None,
        };
        let group = Group { size: 32, hops: vec![hop(8.0, 1.0, 1e12), hop(4.0, 8.0, 1e9)] };
        let expected = 7.0 / 8.0 * 1e9 / 1e12 + 3.0 / 4.0 * 1e9 / 8.0 / 1e9;
        assert!((Exchange::Direct.scatter_s(&group, 1e9) / expected - 1.0).abs() < 1e-5);
    }
}
