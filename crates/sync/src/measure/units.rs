//! Units of ranks, such as those of one host or one site, by the bandwidths of their pairs. If
//! bandwidths show none, ranks with addresses of the same host make units.
//!
//! Two ranks are near each other if their bandwidth is above the widest gap between the bandwidths of
//! all pairs, and the gap is at least [`GAP`]-fold. A twofold gap means nothing, since one pair may
//! share a line that another pair has to itself. Near ranks make units if [`Summation::unit_of`] allows
//! it: their numbers are neighbours, all units have the same size, and no rank is near a rank of
//! another unit. Anything else, such as one rank behind a thin line, makes no units.
//!
//! Ranks of one host are near each other too, whatever was measured. Their units are candidates: `auto` uses them where
//! the predicted step is shorter.
//!
//! Law: if all pairs are within [`GAP`] of each other and no two ranks share a host, there are no
//! units.

use serde::{Deserialize, Serialize};
use thinwire_schedule::Summation;

use crate::measure::pairs::Pair;

/// The least ratio of the slowest pair above the gap to the fastest one below it.
const GAP: f64 = 4.0;

/// Units of neighbouring ranks, and their links within a unit and between units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Units {
    /// Ranks in each unit.
    pub ranks: usize,
    /// Longest time from a bit's departure to its arrival within a unit, in seconds.
    pub latency_s: f64,
    /// Bandwidth of the slowest pair within a unit, in bytes per second and direction.
    pub bytes_per_s: f64,
    /// Bandwidth of the slowest pair between units, in bytes per second and direction: the bandwidth
    /// that one rank has while the others of its unit send to other units too.
    pub between_bytes_per_s: f64,
}

/// Returns the units that `size` ranks make, if they make any. `pairs` has each pair once.
pub(crate) fn units(size: usize, pairs: &[Pair]) -> Option<Units> {
    by_bandwidth(size, pairs).or_else(|| of_near(size, pairs, |pair| pair.same_host))
}

/// Returns the units that bandwidths alone show.
pub(crate) fn by_bandwidth(size: usize, pairs: &[Pair]) -> Option<Units> {
    let limit = above_the_gap(pairs)?;
    of_near(size, pairs, |pair| pair.bytes_per_s >= limit)
}

fn of_near(size: usize, pairs: &[Pair], is_near: impl Fn(&Pair) -> bool) -> Option<Units> {
    let is_near = |pair: &&Pair| is_near(pair);
    let near = |from: usize, to: usize| {
        let ranks = (from.min(to) as u32, from.max(to) as u32);
        pairs.iter().filter(is_near).any(|pair| pair.ranks == ranks)
    };
    let slowest = |near: bool| {
        let rates = pairs.iter().filter(|pair| is_near(pair) == near).map(|it| it.bytes_per_s);
        rates.fold(f64::INFINITY, f64::min)
    };
    Some(Units {
        ranks: Summation::unit_of(size, near)?,
        latency_s: pairs.iter().filter(is_near).map(|pair| pair.latency_s).fold(0.0, f64::max),
        bytes_per_s: slowest(true),
        between_bytes_per_s: slowest(false),
    })
}

/// Returns the lowest bandwidth above the widest gap, if it is wide enough.
fn above_the_gap(pairs: &[Pair]) -> Option<f64> {
    let mut rates: Vec<f64> = pairs.iter().map(|pair| pair.bytes_per_s).collect();
    rates.sort_by(f64::total_cmp);
    let gaps = rates.windows(2).map(|two| (two[1] / two[0], two[1]));
    let (gap, above) = gaps.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (gap >= GAP).then_some(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the units of so many ranks, where a pair has the given bandwidth in MB/s.
    fn found(size: usize, rate: impl Fn(u32, u32) -> f64) -> Option<usize> {
        found_on(size, rate, |_, _| false).map(|units| units.ranks)
    }

    /// The same, where ranks may share a host.
    fn found_on(
        size: usize,
        rate: impl Fn(u32, u32) -> f64,
        same_host: impl Fn(u32, u32) -> bool,
    ) -> Option<Units> {
        let lower =
            (0..size as u32).flat_map(|low| (low + 1..size as u32).map(move |high| (low, high)));
        let pair = |(low, high)| Pair {
            ranks: (low, high),
            latency_s: 1e-4,
            bytes_per_s: rate(low, high) * 1e6,
            same_host: same_host(low, high),
        };
        units(size, &lower.map(pair).collect::<Vec<_>>())
    }

    /// Hosts of `unit` ranks: `within` MB/s, give or take a third, in a host, `between` from host to host.
    fn hosts(size: usize, unit: u32, [within, between]: [f64; 2]) -> Option<usize> {
        found(size, |low, high| match low / unit == high / unit {
            true => within * (1.0 + f64::from((low + high) % 3) / 3.0),
            false => between,
        })
    }

    #[test]
    fn hosts_are_units_where_their_links_are_much_faster() {
        let (none, gigabit) = (None, 120.0);
        for (size, unit, rates, expected) in [
            (4, 2, [2000.0, 12.0], Some(2)),
            (6, 3, [2000.0, gigabit], Some(3)),
            (16, 4, [1200.0, gigabit], Some(4)),
            (8, 2, [60.0, 12.0], Some(2)),
            // Twice as fast is not much faster.
            (4, 2, [24.0, 12.0], none),
            (4, 2, [12.0, 12.0], none),
            // One unit, and units of one rank, are none.
            (4, 4, [2000.0, 12.0], none),
            (4, 1, [2000.0, 12.0], none),
            // The last host is smaller.
            (5, 2, [2000.0, 12.0], none),
            // Nothing to compare with.
            (2, 2, [2000.0, 12.0], none),
        ] {
            assert_eq!(
                hosts(size, unit, rates),
                expected,
                "{size} ranks by {unit}, {rates:?} MB/s"
            );
        }
    }

    #[test]
    fn hosts_by_address_are_units_where_bandwidths_show_none() {
        let near = |low: u32, high: u32| low / 2 == high / 2;
        let alike = |low: u32, high: u32| if near(low, high) { 24.0 } else { 12.0 };
        let units = found_on(4, alike, near).unwrap();
        assert_eq!((units.ranks, units.bytes_per_s, units.between_bytes_per_s), (2, 24e6, 12e6));
        // Sites of two hosts each: what is measured counts before addresses.
        let sites = |low: u32, high: u32| if low / 4 == high / 4 { 2000.0 } else { 12.0 };
        assert_eq!(found_on(8, sites, near).map(|units| units.ranks), Some(4));
        // One host, hosts of one rank, and hosts whose ranks are no neighbours or not equally many.
        let shapes: [fn(u32, u32) -> bool; 4] =
            [|_, _| true, |_, _| false, |l, h| l % 2 == h % 2, |l, h| (l, h) == (0, 1)];
        for same_host in shapes {
            assert_eq!(found_on(4, alike, same_host), None);
        }
    }

    #[test]
    fn parts_of_a_shared_line_are_one_level() {
        // One, two or three pairs share the line of 120 MB/s at a time.
        let shared = |low: u32, high: u32| 120.0 / f64::from(1 + (low + high) % 3);
        assert_eq!(found(6, |l, h| if l / 3 == h / 3 { 2000.0 } else { shared(l, h) }), Some(3));
        assert_eq!(found(6, shared), None);
    }

    #[test]
    fn other_shapes_are_no_units() {
        // Ranks 0 and 2 share a host, 1 and 3 another one.
        assert_eq!(found(4, |l, h| if l % 2 == h % 2 { 2000.0 } else { 12.0 }), None);
        // One rank behind a thin line, and one thin line.
        assert_eq!(found(4, |_, h| if h == 3 { 1.0 } else { 100.0 }), None);
        assert_eq!(found(4, |l, h| if (l, h) == (1, 3) { 1.0 } else { 100.0 }), None);
    }

    #[test]
    fn the_slowest_pair_of_each_level_counts() {
        let pair = |ranks, bytes_per_s, latency_s| Pair {
            ranks,
            latency_s,
            bytes_per_s,
            same_host: false,
        };
        let pairs = [
            pair((0, 1), 1e9, 1e-5),
            pair((0, 2), 6e6, 1e-3),
            pair((0, 3), 7e6, 1e-3),
            pair((1, 2), 6e6, 1e-3),
            pair((1, 3), 5e6, 2e-3),
            pair((2, 3), 9e8, 2e-5),
        ];
        let (latency_s, bytes_per_s, between_bytes_per_s) = (2e-5, 9e8, 5e6);
        let expected = Units { ranks: 2, latency_s, bytes_per_s, between_bytes_per_s };
        assert_eq!(units(4, &pairs), Some(expected));
    }
}
