//! Shards that no server of the epoch has: silent shards, whose servers may come back, and lost shards.
//!
//! Laws: such a shard keeps its last view, so no other server can acknowledge a push. It continues only with
//! a replica that reports its copy and the number of this view.

use std::collections::BTreeSet;

use thinwire_member::Id;

use super::{Configuration, JobState};

impl Configuration {
    /// Continues shards that no server of the epoch had, because a replica of their last view has come
    /// back. Every replica has all acknowledged writes: there was no later view in which further writes
    /// could have been acknowledged.
    pub(super) fn recovered(&mut self, from: Id, kept: &[(u32, u64)]) {
        // A server that is not in the epoch yet repeats its report.
        if !self.state.servers.contains(&from) {
            return;
        }
        let is_kept = |(shard, number): &&(u32, u64)| {
            let view = self.state.views.get(*shard as usize);
            let is_last =
                view.is_some_and(|it| it.number == *number && it.replicas.contains(&from));
            is_last && self.state.is_unavailable(*shard)
        };
        let kept: BTreeSet<u32> = kept.iter().filter(is_kept).map(|(shard, _)| *shard).collect();
        if kept.is_empty() {
            return;
        }
        self.change(|state| {
            state.lost.retain(|shard| !kept.contains(shard));
            state.silent.retain(|shard| !kept.contains(shard));
            // The copies that are there stay where they are.
            for shard in kept.into_iter().map(|shard| shard as usize) {
                state.placement.shards[shard].clone_from(&state.views[shard].replicas);
            }
        });
        self.place();
    }

    /// Notes that no replica of a shard is in the epoch.
    pub(super) fn miss(&mut self, shard: u32) {
        insert(&mut self.state.silent, shard);
    }

    /// Lists shards as lost if all their replicas are dead.
    pub(super) fn lose(&mut self, is_dead: &dyn Fn(Id) -> bool) {
        let dead = self.newly_lost(is_dead);
        let Some(first) = dead.first() else { return };
        self.change(|state| {
            state.silent.retain(|shard| dead.binary_search(shard).is_err());
            dead.iter().for_each(|shard| insert(&mut state.lost, *shard));
        });
        self.interrupt(|| format!("shard {first} is lost"));
    }

    /// Returns the shards whose replicas are all dead and that are not listed as lost yet.
    fn newly_lost(&self, is_dead: &dyn Fn(Id) -> bool) -> Vec<u32> {
        let JobState { servers, views, silent, lost, .. } = &self.state;
        // While one of the epoch's servers lives, an epoch without the dead ones follows.
        let is_deserted = !servers.is_empty() && servers.iter().all(|id| is_dead(*id));
        let asked = if is_deserted { (0..views.len() as u32).collect() } else { silent.clone() };
        let dead = |shard: &u32| views[*shard as usize].replicas.iter().all(|id| is_dead(*id));
        let is_listed = |shard: &u32| lost.binary_search(shard).is_ok();
        asked.into_iter().filter(|shard| !is_listed(shard) && dead(shard)).collect()
    }
}

/// Inserts a number into an ascending list that lacks it.
fn insert(list: &mut Vec<u32>, number: u32) {
    list.insert(list.partition_point(|other| *other < number), number);
}
