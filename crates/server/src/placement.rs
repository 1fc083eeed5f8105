//! Placement of shards on servers.
//!
//! All shards have the same size ([`cut`](crate::cut)), so it suffices to balance the number of copies.
//! Each server has a quota of copies by its weight. Copies move only from servers above their quota to
//! servers below it. Then the roles of primaries are balanced as far as the copies allow; moving a role
//! from one copy to another costs nothing. With at least ten copies per server, quotas are within 10 %
//! of the exact share.
//!
//! Laws: the copies of a shard are on different servers; every server has its quota of copies. If all servers
//! below their quota already have a copy of a shard, a few more copies move than the minimum.

use std::collections::{BTreeMap, VecDeque};

use thinwire_member::Id;

/// Server and its weight in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The server.
    pub id: Id,
    /// Weight, such as its memory; not 0.
    pub weight: u32,
}

/// Servers of every shard, the primary first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Servers, by shard.
    pub shards: Vec<Vec<Id>>,
}

impl Placement {
    /// Returns a placement of `shards` shards on no servers.
    pub fn empty(shards: usize) -> Placement {
        Placement { shards: vec![Vec::new(); shards] }
    }

    /// Returns the placement on these servers that follows this one. Each shard gets `backups` backups, or
    /// fewer if there are not enough servers.
    pub fn next(&self, servers: &[Share], backups: usize) -> Placement {
        let copies = (backups + 1).min(servers.len());
        let lives = |id: &Id| servers.iter().any(|server| server.id == *id);
        let mut next = self.clone();
        for shard in &mut next.shards {
            shard.retain(lives);
            shard.truncate(copies);
        }
        next.level_copies(servers, copies);
        next.level_primaries(servers);
        next
    }

    /// Returns the number of copies of each server.
    pub fn copies(&self) -> BTreeMap<Id, usize> {
        count(self.shards.iter().flatten())
    }

    /// Returns the number of shards of which each server is the primary.
    pub fn primaries(&self) -> BTreeMap<Id, usize> {
        count(self.shards.iter().filter_map(|shard| shard.first()))
    }

    /// Adds the copies that shards lack, then moves copies until every server has its quota.
    fn level_copies(&mut self, servers: &[Share], copies: usize) {
        let limit = self.shards.len();
        let quota = quota(servers, copies * limit, limit, &self.copies());
        let mut load = self.copies();
        for shard in self.shards.iter_mut() {
            while shard.len() < copies {
                let lacks = |server: &&Share| !shard.contains(&server.id);
                let room = |server: &&Share| room(&quota, &load, server.id);
                // `next` asks for no more copies than there are servers, so one of them lacks the shard.
                let Some(server) = servers.iter().filter(lacks).max_by_key(room) else { break };
                shard.push(server.id);
                *load.entry(server.id).or_default() += 1;
            }
        }
        let give = |shard: &mut Vec<Id>, from: Id, to: Id| {
            let at = shard.iter().position(|id| *id == from).filter(|_| !shard.contains(&to));
            at.is_some_and(|at| {
                shard[at] = to;
                true
            })
        };
        level(&mut self.shards, load, &quota, give);
    }

    fn level_primaries(&mut self, servers: &[Share]) {
        let limit = self.shards.len();
        let load = self.primaries();
        let quota = quota(servers, limit, limit, &load);
        let give = |shard: &mut Vec<Id>, from: Id, to: Id| {
            let at = shard.iter().position(|id| *id == to).filter(|_| shard.first() == Some(&from));
            at.is_some_and(|at| {
                shard.swap(0, at);
                true
            })
        };
        level(&mut self.shards, load, &quota, give);
    }
}

fn count<'a>(ids: impl Iterator<Item = &'a Id>) -> BTreeMap<Id, usize> {
    let mut counts = BTreeMap::new();
    ids.for_each(|id| *counts.entry(*id).or_default() += 1);
    counts
}

fn room(quota: &BTreeMap<Id, usize>, load: &BTreeMap<Id, usize>, id: Id) -> i64 {
    quota[&id] as i64 - load.get(&id).copied().unwrap_or(0) as i64
}

/// Divides `total` by weight, at most `limit` to each server. Servers with more copies get the larger part of
/// a rounding remainder, so that less moves.
fn quota(
    servers: &[Share],
    total: usize,
    limit: usize,
    load: &BTreeMap<Id, usize>,
) -> BTreeMap<Id, usize> {
    let mut quota: BTreeMap<Id, usize> = servers.iter().map(|server| (server.id, 0)).collect();
    let mut left = total;
    // What exceeds the limit of a server is divided again among the others.
    loop {
        let open: Vec<&Share> = servers.iter().filter(|server| quota[&server.id] < limit).collect();
        let weight: u128 = open.iter().map(|server| u128::from(server.weight)).sum();
        if left == 0 || weight == 0 {
            return quota;
        }
        let share = |server: &Share| (left as u128 * u128::from(server.weight) / weight) as usize;
        let shares: Vec<usize> =
            open.iter().map(|server| share(server).min(limit - quota[&server.id])).collect();
        if shares.iter().all(|share| *share == 0) {
            break remainder(&open, left, load, quota);
        }
        for (server, share) in open.iter().zip(shares) {
            *quota.get_mut(&server.id).expect("every server has a quota") += share;
            left -= share;
        }
    }
}

fn remainder(
    open: &[&Share],
    left: usize,
    load: &BTreeMap<Id, usize>,
    mut quota: BTreeMap<Id, usize>,
) -> BTreeMap<Id, usize> {
    let mut order: Vec<Id> = open.iter().map(|server| server.id).collect();
    order.sort_by_key(|id| (room(&quota, load, *id), *id));
    for id in order.into_iter().take(left) {
        *quota.get_mut(&id).expect("every server has a quota") += 1;
    }
    quota
}

/// Moves load from servers above their quota to servers below it, each time along a shortest path. `give`
/// moves one shard from one server to another, if possible.
fn level(
    shards: &mut [Vec<Id>],
    mut load: BTreeMap<Id, usize>,
    quota: &BTreeMap<Id, usize>,
    give: impl Fn(&mut Vec<Id>, Id, Id) -> bool,
) {
    for from in quota.keys().copied() {
        while room(quota, &load, from) < 0 {
            let Some(to) = pass(shards, from, |id| room(quota, &load, id) > 0, quota, &give) else {
                break;
            };
            *load.entry(from).or_default() -= 1;
            *load.entry(to).or_default() += 1;
        }
    }
}

/// Moves one unit of load along a shortest path from `from` to a server for which `takes` holds. Returns that
/// server, or `None` if no path leads to one.
fn pass(
    shards: &mut [Vec<Id>],
    from: Id,
    takes: impl Fn(Id) -> bool,
    servers: &BTreeMap<Id, usize>,
    give: &impl Fn(&mut Vec<Id>, Id, Id) -> bool,
) -> Option<Id> {
    let mut before: BTreeMap<Id, (Id, usize)> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    let to = loop {
        let id = queue.pop_front()?;
        if takes(id) {
            break id;
        }
        // `before` must not have `from`, where the way back ends.
        for next in servers.keys().copied().filter(|next| *next != from) {
            // Nothing moves before the path is known, so `give` is tried on a copy.
            let can = |shard: &Vec<Id>| give(&mut shard.clone(), id, next);
            if !before.contains_key(&next)
                && let Some(shard) = shards.iter().position(can)
            {
                before.insert(next, (id, shard));
                queue.push_back(next);
            }
        }
    };
    let mut id = to;
    while id != from {
        let (giver, shard) = before[&id];
        give(&mut shards[shard], giver, id);
        id = giver;
    }
    Some(to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn servers(weights: &[(u64, u32)]) -> Vec<Share> {
        weights.iter().map(|(id, weight)| Share { id: Id(*id), weight: *weight }).collect()
    }

    fn even(ids: impl Iterator<Item = u64>) -> Vec<Share> {
        ids.map(|id| Share { id: Id(id), weight: 1 }).collect()
    }

    /// Returns the number of copies on servers that had none of their shard before.
    fn moved(before: &Placement, after: &Placement) -> usize {
        let shards = before.shards.iter().zip(&after.shards);
        shards.map(|(a, b)| b.iter().filter(|id| !a.contains(id)).count()).sum()
    }

    #[test]
    fn a_third_server_takes_a_third_and_nothing_else_moves() {
        let two = Placement::empty(48).next(&even(0..2), 0);
        let three = two.next(&even(0..3), 0);
        assert_eq!(three.copies().into_values().collect::<Vec<_>>(), [16, 16, 16]);
        assert_eq!(moved(&two, &three), 16);
        let again = three.next(&even(1..3), 0);
        assert_eq!(moved(&three, &again), 16, "the shards of the one that left");
    }

    #[test]
    fn weights_are_kept() {
        let placement = Placement::empty(90).next(&servers(&[(1, 1), (2, 3), (3, 5)]), 0);
        assert_eq!(placement.copies().into_values().collect::<Vec<_>>(), [10, 30, 50]);
        let alone = Placement::empty(4).next(&servers(&[(1, 1), (2, 9)]), 1);
        assert_eq!(alone.copies().into_values().collect::<Vec<_>>(), [4, 4]);
    }

    proptest! {
        #[test]
        fn servers_come_and_go(
            changes in prop::collection::vec(prop::collection::btree_set(0_u64..7, 1..7), 1..6),
            backups in 0_usize..3
        ) {
            let mut placement = Placement::empty(64);
            for ids in changes {
                let servers = even(ids.iter().copied());
                let next = placement.next(&servers, backups);
                let copies = (backups + 1).min(servers.len());
                for shard in &next.shards {
                    let distinct: std::collections::BTreeSet<_> = shard.iter().collect();
                    prop_assert_eq!((shard.len(), distinct.len()), (copies, copies));
                }
                let counts = next.copies();
                let exact = 64.0 * copies as f64 / servers.len() as f64;
                for id in &ids {
                    let found = counts.get(&Id(*id)).copied().unwrap_or(0);
                    prop_assert!((found as f64 - exact).abs() < 1.0, "{found}, not {exact}");
                }
                placement = next;
            }
        }
    }
}
