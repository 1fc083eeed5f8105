//! Units of ranks by host, in groups whose pairs are too many to measure one by one.
//!
//! Every rank reports the lowest rank that runs on its host, which it knows from addresses. If hosts
//! make units, a few pairs within a host and a few between hosts are measured, all pairs of a round at
//! once, in the order of [`pairs`](crate::measure::pairs): the time does not grow with the number of
//! ranks. Sites of several hosts are not found here, since only bandwidths could show them.
//!
//! Law: all ranks find the same units; there are none unless every host has equally many ranks, at least two, whose
//! numbers are neighbours, and there is more than one host.

use thinwire_collective::{Error, Group, all_gather};
use thinwire_schedule::Summation;
use thinwire_wire::Rank;

use crate::measure::pairs::{self, Unequal};
use crate::measure::units::Units;

/// Rounds of pairs within hosts, and between them: with an odd number a rank is idle in one of them at most.
const ROUNDS: usize = 3;

/// Latency in seconds and bandwidth in bytes per second of the pairs that a rank has met.
#[derive(Clone, Copy)]
struct Met {
    latency_s: f32,
    bytes_per_s: f32,
}

/// Finds the units that hosts make, and measures some pairs within and between them; `None` if hosts
/// make no units. `shares_host` tells whether another rank runs on the host of this one.
pub(crate) fn measure(
    group: &mut Group,
    shares_host: impl Fn(&Group, Rank) -> bool,
) -> Result<Option<Unequal>, Error> {
    let world = group.world();
    let (size, rank) = (world.size(), world.rank());
    let lowest =
        (0..size as u32).find(|other| *other == rank.0 || shares_host(group, Rank(*other)));
    let hosts = all_gather(group, &[lowest.unwrap_or(rank.0) as f32])?;
    let Some(unit) = Summation::unit_of(size, |one, other| hosts[one] == hosts[other]) else {
        return Ok(None);
    };
    let (host, place) = (rank.index() / unit, rank.index() % unit);
    let within = meet(group, unit, place, |other| host * unit + other)?;
    let between = meet(group, size / unit, host, |other| other * unit + place)?;
    let mine = [within, between].map(|met| [met.latency_s, met.bytes_per_s]).concat();
    let all = all_gather(group, &mine)?;
    let of_all = |field: usize| all.iter().skip(field).step_by(4).copied().map(f64::from);
    let units = Units {
        ranks: unit,
        latency_s: of_all(0).fold(0.0, f64::max),
        bytes_per_s: of_all(1).fold(f64::INFINITY, f64::min),
        between_bytes_per_s: of_all(3).fold(f64::INFINITY, f64::min),
    };
    let (latency_s, bytes_per_s) = (units.latency_s, units.bytes_per_s);
    Ok(Some(Unequal { latency_s, bytes_per_s, slow: Vec::new(), units: Some(units) }))
}

/// Measures this rank's pairs with a few others, as player `mine` of a tournament, where `rank_of`
/// tells the rank of a player; returns the worst figures.
fn meet(
    group: &mut Group,
    players: usize,
    mine: usize,
    rank_of: impl Fn(usize) -> usize,
) -> Result<Met, Error> {
    let mut met = Met { latency_s: 0.0, bytes_per_s: f32::INFINITY };
    for round in 0..pairs::rounds(players).min(ROUNDS) {
        if let Some(other) = pairs::partner(mine as u32, round, players) {
            let other = Rank(rank_of(other as usize) as u32);
            let [latency_s, bytes_per_s] = pairs::of_pair(group, other)?;
            met.latency_s = met.latency_s.max(latency_s);
            met.bytes_per_s = met.bytes_per_s.min(bytes_per_s);
        }
    }
    Ok(met)
}

#[cfg(test)]
mod tests {
    use thinwire_testkit::{self as testkit, Network};

    use super::*;

    /// The units that ranks find whose hosts have the given numbers.
    fn found(hosts: &[usize]) -> Vec<Option<Unequal>> {
        testkit::spawn(Network::Mem, hosts.len(), |link| {
            let shares_host = |group: &Group, other: Rank| {
                hosts[group.world().rank().index()] == hosts[other.index()]
            };
            measure(&mut Group::new(link), shares_host).unwrap()
        })
    }

    #[test]
    fn equal_hosts_of_neighbours_are_units_on_all_ranks_alike() {
        for (hosts, unit) in [
            ((0..18).map(|rank| rank / 6).collect::<Vec<_>>(), Some(6)),
            ((0..20).map(|rank| rank / 2).collect(), Some(2)),
            // One host, hosts of one rank, unequal hosts, ranks dealt out in turn.
            (vec![0; 18], None),
            ((0..18).collect(), None),
            ((0..18).map(|rank| rank / 7).collect(), None),
            ((0..18).map(|rank| rank % 3).collect(), None),
        ] {
            let found = found(&hosts);
            assert!(found.iter().all(|rank| *rank == found[0]), "{hosts:?}: {found:?}");
            let units = found[0].as_ref().and_then(|unequal| unequal.units);
            assert_eq!(units.map(|units| units.ranks), unit, "{hosts:?}");
            let measured = units.map(|units| [units.bytes_per_s, units.between_bytes_per_s]);
            let is_measured = |rate: &f64| rate.is_finite() && *rate > 0.0;
            assert!(measured.iter().flatten().all(is_measured), "{units:?}");
        }
    }
}
