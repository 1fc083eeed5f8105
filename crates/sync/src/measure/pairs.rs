//! The pairs of ranks that are further apart than the others.
//!
//! Two sites may be joined by a thin line, or one rank may be behind a VPN. The measurement of all
//! ranks together shows the worst link, and not where it is. So pairs are also measured one by one, to
//! show why the link is slow, and to find [`units`](crate::measure::units) of ranks, for which each
//! pair also has whether its ranks share a host. For flat sums, the planner uses the speed of all ranks
//! together, around a ring and each with all, because pairs may share a line.
//!
//! Pairs are measured as in a tournament (the circle method): in every round each rank meets one other.
//! All pairs of a round are measured at once, and no two share a rank.
//!
//! Law: every pair meets once, and no rank meets two others at a time.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use thinwire_collective::{Error, Group, all_gather, start};
use thinwire_wire::Rank;

use crate::measure::units::{Units, units};

/// The time that a measurement is to take, in seconds.
const PAIR_S: f32 = 0.02;

/// A message has at least and at most this many elements.
const PAIR_ELEMENTS_MIN: usize = 1 << 12;
const PAIR_ELEMENTS_MAX: usize = 1 << 20;

/// The number of these messages between two ranks.
const NUMBER: u32 = 0;

/// A pair is slow if its bandwidth is lower by this factor than the best that every rank reaches with
/// some other, or if its latency is higher by this factor and by more than threads scatter.
const SLOW: f64 = 2.0;
const FAR: f64 = 3.0;
const SCATTER_S: f64 = 1e-3;

/// Ranks that are not all equally far from each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unequal {
    /// Latency of pairs that are not slow, in seconds: the time from a bit's departure to its arrival.
    pub latency_s: f64,
    /// The rate at which every rank can send to at least one other rank, in bytes per second.
    pub bytes_per_s: f64,
    /// The slow pairs: those with lower bandwidth or higher latency.
    pub slow: Vec<Pair>,
    /// The units of ranks with slow pairs between them, or else the units of ranks that share a host;
    /// `None` if ranks make no units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<Units>,
}

/// Two ranks, and the latency and bandwidth between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The ranks, the lower one first.
    pub ranks: (u32, u32),
    /// Seconds from a bit's departure to its arrival.
    pub latency_s: f64,
    /// Bytes per second in each direction.
    pub bytes_per_s: f64,
    /// Whether both ranks run on one host, as their addresses show.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_host: bool,
}

/// Measures every pair, in the order of their ranks. `shares_host` tells whether another rank runs on the host of
/// this one.
pub(crate) fn measure(
    group: &mut Group,
    shares_host: impl Fn(&Group, Rank) -> bool,
) -> Result<Vec<Pair>, Error> {
    let (size, rank) = (group.world().size(), group.world().rank());
    let mut mine = vec![[0.0; 3]; size];
    for round in 0..rounds(size) {
        if let Some(other) = partner(rank.0, round, size) {
            let [round_s, bytes_per_s] = of_pair(group, Rank(other))?;
            let same_host = f32::from(u8::from(shares_host(group, Rank(other))));
            mine[other as usize] = [round_s, bytes_per_s, same_host];
        }
    }
    let all = all_gather(group, &mine.concat())?;
    let seen = |from: usize, to: usize| {
        let at = 3 * (from * size + to);
        [all[at], all[at + 1], all[at + 2]].map(f64::from)
    };
    Ok(pairs(size, seen))
}

/// Returns the only pair of two ranks, between which all ranks have measured this.
pub(crate) fn of_two(group: &mut Group, latency_s: f64, bytes_per_s: f64) -> Result<Pair, Error> {
    let shares_host = group.shares_host(group.world().after(1));
    let both = all_gather(group, &[f32::from(u8::from(shares_host))])?;
    let same_host = both.iter().all(|shares| *shares > 0.0);
    Ok(Pair { ranks: (0, 1), latency_s, bytes_per_s, same_host })
}

/// Measures latency and bandwidth between this rank and another. Messages grow until they take long
/// enough to trust, beyond what a token bucket has saved; both ends decide by the same number.
pub(crate) fn of_pair(group: &mut Group, other: Rank) -> Result<[f32; 2], Error> {
    let mut round_s = f32::INFINITY;
    for _ in 0..3 {
        round_s = round_s.min(meet(group, other, 1)?);
    }
    let mut elements = PAIR_ELEMENTS_MIN;
    loop {
        // What disturbs a thread makes it longer, never shorter.
        let seconds = meet(group, other, elements)?.min(meet(group, other, elements)?);
        if seconds > PAIR_S || elements >= PAIR_ELEMENTS_MAX {
            // The shortest message may have been disturbed and take about as long: a tenth is left for the bytes.
            let bytes_per_s = (elements * 4) as f32 / (seconds - round_s).max(seconds / 10.0);
            return Ok([round_s, bytes_per_s]);
        }
        elements *= 2;
    }
}

/// Returns the seconds in which both ranks of a pair send each other `elements` elements: those of the
/// later end, the same on both.
fn meet(group: &mut Group, other: Rank, elements: usize) -> Result<f32, Error> {
    let begin = Instant::now();
    swap(group, other, vec![0.0; elements])?;
    let mine = begin.elapsed().as_secs_f32();
    Ok(mine.max(swap(group, other, vec![mine])?[0]))
}

/// Sends `values` to another rank, which sends the same number; returns the other rank's values.
fn swap(group: &mut Group, other: Rank, values: Vec<f32>) -> Result<Vec<f32>, Error> {
    let received = vec![0.0; values.len()];
    let send = start::send(group, values, other, NUMBER)?;
    let recv = start::recv(group, received, other, NUMBER)?;
    let mut runs = [send, recv];
    group.complete(&mut runs)?;
    let [_, recv] = runs;
    Ok(recv.into_parts().0)
}

/// Returns every pair once, with the worse figures of its two ends.
fn pairs(size: usize, seen: impl Fn(usize, usize) -> [f64; 3]) -> Vec<Pair> {
    let lower = (0..size).flat_map(|low| (low + 1..size).map(move |high| (low, high)));
    let pair = |(low, high): (usize, usize)| {
        let (there, back) = (seen(low, high), seen(high, low));
        Pair {
            ranks: (low as u32, high as u32),
            latency_s: there[0].max(back[0]),
            bytes_per_s: there[1].min(back[1]),
            same_host: there[2].min(back[2]) > 0.0,
        }
    };
    lower.map(pair).collect()
}

/// Returns the usual speed, the slow pairs, and the units that ranks make; `None` if no pair is slow
/// and ranks make no units.
pub(crate) fn unequal(size: usize, pairs: &[Pair]) -> Option<Unequal> {
    let of_rank =
        |rank: u32| pairs.iter().filter(move |pair| pair.ranks.0 == rank || pair.ranks.1 == rank);
    let ranks = 0..size as u32;
    let best = |rank| of_rank(rank).map(|pair| pair.bytes_per_s).fold(0.0, f64::max);
    let nearest = |rank| of_rank(rank).map(|pair| pair.latency_s).fold(f64::INFINITY, f64::min);
    let bytes_per_s = ranks.clone().map(best).fold(f64::INFINITY, f64::min);
    let latency_s = ranks.map(nearest).fold(0.0, f64::max);
    let is_slow = |pair: &&Pair| {
        pair.bytes_per_s * SLOW < bytes_per_s
            || pair.latency_s > FAR * latency_s && pair.latency_s - latency_s > SCATTER_S
    };
    let slow: Vec<Pair> = pairs.iter().filter(is_slow).copied().collect();
    let units = units(size, pairs);
    (!slow.is_empty() || units.is_some()).then_some(Unequal { latency_s, bytes_per_s, slow, units })
}

/// Rounds in which every pair meets.
pub(crate) fn rounds(size: usize) -> usize {
    size.next_multiple_of(2) - 1
}

/// Returns the partner of a rank in a round; `None` in one of the rounds if the number of ranks is odd.
pub(crate) fn partner(rank: u32, round: usize, size: usize) -> Option<u32> {
    let (circle, rank) = (rounds(size), rank as usize);
    let other = if rank == circle {
        // The one in the middle meets whoever would meet themself.
        (0..circle).find(|other| 2 * other % circle == round % circle)?
    } else {
        match (round + circle - rank) % circle {
            other if other == rank => circle,
            other => other,
        }
    };
    (other < size).then_some(other as u32)
}

#[cfg(test)]
mod tests {
    use thinwire_testkit::{self as testkit, Network};

    use super::*;

    #[test]
    fn every_pair_meets_once_and_nobody_meets_two() {
        for size in 2..20_u32 {
            let mut met = vec![0; (size * size) as usize];
            for round in 0..rounds(size as usize) {
                for rank in 0..size {
                    if let Some(other) = partner(rank, round, size as usize) {
                        assert_ne!(rank, other);
                        assert_eq!(partner(other, round, size as usize), Some(rank));
                        met[(rank * size + other) as usize] += 1;
                    }
                }
            }
            let once = |(place, count): (usize, &i32)| {
                *count == i32::from(place as u32 / size != place as u32 % size)
            };
            assert!(met.iter().enumerate().all(once), "{size}: {met:?}");
        }
    }

    fn found(size: usize, thin: &[(u32, u32)]) -> Option<Unequal> {
        let seen = |from: usize, to: usize| {
            let pair = (from.min(to) as u32, from.max(to) as u32);
            [1e-4, if thin.contains(&pair) { 1e6 } else { 1.1e7 + 1e5 * from as f64 }, 0.0]
        };
        unequal(size, &pairs(size, seen))
    }

    #[test]
    fn thin_lines_are_found_and_a_slow_rank_is_none() {
        assert_eq!(found(4, &[]), None);
        let ranks = |found: Option<Unequal>| -> Vec<(u32, u32)> {
            found.map_or(Vec::new(), |it| it.slow.iter().map(|pair| pair.ranks).collect())
        };
        assert_eq!(ranks(found(4, &[(1, 3)])), [(1, 3)]);
        let sites = [(0, 2), (0, 3), (1, 2), (1, 3)];
        assert_eq!(ranks(found(4, &sites)), sites);
        assert_eq!(found(4, &sites).unwrap().bytes_per_s, 1.1e7);
        // Whoever is slow with everybody holds everybody up, however they are arranged.
        assert_eq!(ranks(found(3, &[(0, 2), (1, 2)])), []);
    }

    #[test]
    fn hosts_are_units_even_where_all_links_are_alike() {
        let seen = |from: usize, to: usize| [1e-4, 1e7, f64::from(u8::from(from / 2 == to / 2))];
        let found = unequal(4, &pairs(4, seen)).unwrap();
        assert_eq!((found.slow.len(), found.units.map(|units| units.ranks)), (0, Some(2)));
        // One end that does not see it is enough to doubt.
        let doubted = |from, to| if from == 3 { [1e-4, 1e7, 0.0] } else { seen(from, to) };
        assert_eq!(unequal(4, &pairs(4, doubted)), None);
    }

    /// Ranks that measure each other, two to a host or all on one, as their links say.
    #[test]
    fn ranks_on_two_hosts_make_units() {
        let units = |shares_host: fn(&Group, Rank) -> bool| {
            testkit::spawn(Network::Mem, 4, |link| {
                let mut group = Group::new(link);
                let pairs = measure(&mut group, shares_host).unwrap();
                (units(4, &pairs).map(|units| units.ranks), pairs)
            })
        };
        let two = units(|group, peer| group.world().rank().0 / 2 == peer.0 / 2);
        assert!(two.iter().all(|rank| *rank == two[0]), "{two:?}");
        let on_one_host = |(_, pairs): &(_, Vec<Pair>)| {
            pairs.iter().filter(|pair| pair.same_host).map(|pair| pair.ranks).collect::<Vec<_>>()
        };
        assert_eq!((two[0].0, on_one_host(&two[0])), (Some(2), vec![(0, 1), (2, 3)]));
        let one = units(Group::shares_host);
        assert_eq!(on_one_host(&one[0]).len(), 6);
    }

    #[test]
    fn pairs_of_earlier_records_are_of_different_hosts() {
        let pair = r#"{"ranks":[0,1],"latency_s":0.5,"bytes_per_s":2.0}"#;
        let found: Pair = serde_json::from_str(pair).unwrap();
        assert!(!found.same_host);
        assert_eq!(serde_json::to_string(&found).unwrap(), pair);
    }
}
