//! Rates of all ranks' links, from which a floor is computed.
//!
//! Pairs of ranks measure a plain stream one after the other before the mesh exists, because its links would
//! need heartbeats during the measurement. Ranks share their rates through the job's store.

use std::time::Duration;

use anyhow::{Context, Result};
use thinwire_job::Meeting;
use thinwire_link::store::Store;
use thinwire_report::figures::bytes_per_s;

use super::plain::{Plain, Rates};

/// A timeout longer than the measurements of all pairs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The ratio below which two rates count as equal.
const EQUAL: f64 = 1.1;

/// Returns the rates between ranks 0 and 1, on these two ranks only, and the bytes per second of each rank,
/// each way. A rank's bytes per second are `limit` if given, or else its highest rate to any peer.
///
/// # Errors
/// If the connection between ranks is lost.
pub fn of_ranks(meeting: &Meeting, limit: Option<f64>) -> Result<(Option<Rates>, Vec<f64>)> {
    let world = meeting.world();
    let (rank, size) = (world.rank().0, world.size() as u32);
    let Some((store, host)) = meeting.store() else { return Ok((None, vec![f64::INFINITY])) };
    let limits = exchanged(store, "limit", rank, size, limit.unwrap_or(0.0))?;
    let emulated = limits.iter().all(|limit| *limit > 0.0);
    let (mut first, mut fastest) = (None, 0.0_f64);
    for (turn, (a, b)) in
        pairs(size).into_iter().take(if emulated { 1 } else { usize::MAX }).enumerate()
    {
        if let Some(mut plain) = Plain::between(a, b, rank, host, store)? {
            let both_ways = match turn {
                0 => first.insert(plain.rates()?).both_ways,
                _ => plain.both_ways()?,
            };
            fastest = fastest.max(both_ways);
        }
        // One pair at a time, so that none shares a link or a core with another.
        let done = format!("bench/done/{turn}");
        if rank == a {
            store.set(&done, b"done")?;
        }
        store.get(&done, TIMEOUT)?;
    }
    Ok((first, exchanged(store, "rate", rank, size, limit.unwrap_or(fastest))?))
}

/// Returns the values of all ranks, in rank order.
fn exchanged(store: &dyn Store, name: &str, rank: u32, size: u32, mine: f64) -> Result<Vec<f64>> {
    let key = |rank| format!("bench/{name}/{rank}");
    store.set(&key(rank), mine.to_string().as_bytes())?;
    let said = (0..size).map(|rank| {
        let text = store.get(&key(rank), TIMEOUT)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        text.parse().with_context(|| format!("rank {rank} gives '{text}' as its {name}"))
    });
    said.collect()
}

/// Returns the rates in words if they differ.
pub fn differing(rates: &[f64]) -> String {
    let (least, most) = rates
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    if most <= EQUAL * least {
        return String::new();
    }
    let rates: Vec<String> = rates.iter().map(|rate| bytes_per_s(*rate)).collect();
    format!("; by rank each way: {}", rates.join(", "))
}

/// Returns the pairs of ranks that measure a plain stream: all pairs if that takes only seconds, otherwise
/// neighbours. If all pairs are measured, each rank is also measured with the fastest other rank.
fn pairs(world: u32) -> Vec<(u32, u32)> {
    const ALL_MAX: u32 = 8;
    let all = (0..world).flat_map(|a| (a + 1..world).map(move |b| (a, b)));
    all.filter(|(a, b)| world <= ALL_MAX || b - a == 1 || b - a == world - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_measured_and_every_pair_of_few() {
        assert_eq!(pairs(2), [(0, 1)]);
        assert_eq!(pairs(4), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
        let many = pairs(64);
        assert_eq!(many.len(), 64);
        assert!(
            (0..64).all(|rank| many.iter().filter(|(a, b)| *a == rank || *b == rank).count() == 2)
        );
    }

    #[test]
    fn rates_are_told_where_they_differ() {
        assert_eq!(differing(&[1e8, 1.05e8]), "");
        assert_eq!(differing(&[1e8, 2.5e7]), "; by rank each way: 100 MB/s, 25.0 MB/s");
    }
}
