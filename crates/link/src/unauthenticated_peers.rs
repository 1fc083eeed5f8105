//! Places for connections that have not proven the token yet.
//!
//! Anybody can connect to an open port. Every address has its own places: a new connection from an
//! address without a free place displaces one of that address. A connection that has sent nothing yet
//! is displaced first, since ranks send at once; of several such connections, the oldest. The more
//! places are taken in all, the less time each unauthenticated peer has. Law: unauthenticated peers
//! from one address never take a place that another address needs, and silent ones never take a place
//! that a rank at their own address needs.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::{Deadline, Error};

/// The time that an unauthenticated peer has when all places are taken.
pub const HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The largest number of connections to accept before existing ones get a turn.
pub const ACCEPTS_MAX: usize = 32;
/// The pause after a failed accept, which mostly means that file descriptors ran out.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Addresses whose unauthenticated peers are counted one by one.
const SITES_MAX: usize = 64;

/// The most unauthenticated peers at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The most from all addresses.
    pub total: usize,
    /// The most from one address, or from one /64 network under IPv6, which one host may own.
    pub per_address: usize,
}

/// A connection that has not proven the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnauthenticatedPeer {
    /// The address of the other end.
    pub address: IpAddr,
    /// The time at which the connection was accepted.
    pub since: Instant,
    /// Whether it has sent nothing yet.
    pub silent: bool,
}

impl Places {
    /// Returns the time that unauthenticated peers have when `taken` places are taken.
    pub fn handshake_timeout(&self, taken: usize) -> Duration {
        let half = self.total / 2;
        let pressure = taken.saturating_sub(half) as f64 / (self.total - half).max(1) as f64;
        Deadline::Handshake.duration()
            - (Deadline::Handshake.duration() - HANDSHAKE_TIMEOUT_MIN).mul_f64(pressure.min(1.0))
    }

    /// Returns the key in `unauthenticated_peers` of the peer that a new connection from `address`
    /// displaces.
    pub fn evicted<I: Copy>(
        &self,
        unauthenticated_peers: impl Iterator<Item = (I, UnauthenticatedPeer)>,
        address: IpAddr,
    ) -> Option<I> {
        let site = Site::of(address);
        let there: Vec<_> = unauthenticated_peers
            .filter(|(_, unauthenticated_peer)| Site::of(unauthenticated_peer.address) == site)
            .collect();
        if there.len() < self.per_address {
            return None;
        }
        let first = there.iter().min_by_key(|(_, unauthenticated_peer)| {
            (!unauthenticated_peer.silent, unauthenticated_peer.since)
        });
        first.map(|(place, _)| *place)
    }
}

/// Numbers of unauthenticated peers that left without having proven the token, by address.
#[derive(Debug, Default)]
pub struct Tally {
    total: u64,
    sites: BTreeMap<Site, u64>,
}

impl Tally {
    /// Counts one more peer.
    pub fn add(&mut self, address: IpAddr) {
        self.total += 1;
        let site = Site::of(address);
        if self.sites.len() < SITES_MAX || self.sites.contains_key(&site) {
            *self.sites.entry(site).or_default() += 1;
        }
    }

    /// Returns "900 connections did not prove the job token, 850 of them from 10.0.0.7"; `None` if
    /// there were no such connections.
    pub fn describe(&self) -> Option<String> {
        let (site, most) = self.sites.iter().max_by_key(|(_, count)| **count)?;
        let (total, plural) = (self.total, if self.total == 1 { "" } else { "s" });
        let from = match *most == total {
            true => format!("from {site}"),
            false => format!("{most} of them from {site}"),
        };
        Some(format!("{total} connection{plural} did not prove the job token, {from}"))
    }
}

/// Reasons for which connections were refused: one of them may explain why a process is missing.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The last one whose cause the refused process can correct.
    last: Option<Error>,
    unauthenticated_peers: Tally,
}

impl Refusals {
    /// Keeps the reason of a refusal, since other processes may wait for the one that was refused.
    pub fn keep(&mut self, error: Error) {
        self.last = Some(error);
    }

    /// Counts a connection that did not prove the token.
    pub fn count(&mut self, address: IpAddr) {
        self.unauthenticated_peers.add(address);
    }

    /// Adds the probable cause to an error about a missing process: that it was refused, or never
    /// got through.
    pub fn explain(&self, mut error: Error) -> Error {
        if let Some(unauthenticated_peers) = self.unauthenticated_peers.describe() {
            error.context = format!("{}; {unauthenticated_peers}", error.context);
        }
        match &self.last {
            Some(last) => Error::new(last.kind, format!("{}; {}", error.context, last.context)),
            None => error,
        }
    }
}

/// An address, or a network of 64 bits under IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site(IpAddr);

impl Site {
    fn of(address: IpAddr) -> Site {
        Site(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            other => other,
        })
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V6(address) if !address.is_loopback() => write!(f, "{address}/64"),
            address => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { total: 8, per_address: 3 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Unauthenticated peers in the order in which they came.
    fn unauthenticated_peers(list: &[(&str, bool)]) -> Vec<(usize, UnauthenticatedPeer)> {
        let start = Instant::now();
        let unauthenticated_peer = |(place, (from, silent)): (usize, &(&str, bool))| {
            let since = start + Duration::from_millis(place as u64);
            (place, UnauthenticatedPeer { address: address(from), since, silent: *silent })
        };
        list.iter().enumerate().map(unauthenticated_peer).collect()
    }

    #[test]
    fn a_full_address_loses_a_silent_stranger_first_then_the_oldest() {
        type Case<'a> = (&'a [(&'a str, bool)], Option<usize>);
        let table: [Case<'_>; 5] = [
            (&[("10.0.0.1", true), ("10.0.0.1", true)], None),
            (&[("10.0.0.2", true), ("10.0.0.1", true), ("10.0.0.1", true)], None),
            (&[("10.0.0.1", false), ("10.0.0.1", true), ("10.0.0.1", true)], Some(1)),
            (&[("10.0.0.1", false), ("10.0.0.1", false), ("10.0.0.1", false)], Some(0)),
            (&[("::ffff:10.0.0.1", true), ("10.0.0.1", true), ("10.0.0.1", true)], Some(0)),
        ];
        for (list, gone) in table {
            let found =
                PLACES.evicted(unauthenticated_peers(list).into_iter(), address("10.0.0.1"));
            assert_eq!(found, gone, "{list:?}");
        }
    }

    #[test]
    fn a_network_of_one_host_counts_as_one_address() {
        let there = unauthenticated_peers(&[
            ("2001:db8::1", true),
            ("2001:db8::2", true),
            ("2001:db8::3", true),
        ]);
        let evicted = |from| PLACES.evicted(there.iter().copied(), address(from));
        assert_eq!(evicted("2001:db8::99"), Some(0));
        assert_eq!(evicted("2001:db8:0:1::99"), None);
    }

    #[test]
    fn patience_shrinks_when_more_than_half_of_the_places_are_taken() {
        let handshake_timeout = [0, 4, 6, 8, 99].map(|taken| PLACES.handshake_timeout(taken));
        let middle = (Deadline::Handshake.duration() + HANDSHAKE_TIMEOUT_MIN) / 2;
        assert_eq!(
            handshake_timeout,
            [
                Deadline::Handshake.duration(),
                Deadline::Handshake.duration(),
                middle,
                HANDSHAKE_TIMEOUT_MIN,
                HANDSHAKE_TIMEOUT_MIN
            ]
        );
    }

    #[test]
    fn strangers_are_counted_by_address_in_bounded_memory() {
        let mut tally = Tally::default();
        assert_eq!(tally.describe(), None);
        tally.add(address("2001:db8::1"));
        let one = "1 connection did not prove the job token, from 2001:db8::/64";
        assert_eq!(tally.describe().unwrap(), one);
        (0..900).for_each(|_| tally.add(address("10.0.0.7")));
        (0..999u32).for_each(|number| tally.add(IpAddr::V4(number.into())));
        let many = "1900 connections did not prove the job token, 900 of them from 10.0.0.7";
        assert_eq!(tally.describe().unwrap(), many);
        assert_eq!(tally.sites.len(), SITES_MAX);
    }
}
