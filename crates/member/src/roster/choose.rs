//! Next epoch, chosen from what the members of the last one report.
//!
//! The newest state wins: members that have it are state sources and come first. A leaver stays for one more
//! epoch if nobody else has that state.

use std::cmp::Reverse;
use std::time::Duration;

use super::Roster;
use crate::{CoordinatorMode, Epoch, Id, Report, Standing, State, Wait};

/// Newest state among the members that have stopped.
struct Newest {
    state: Option<State>,
    /// Whether it is older than the one that the last epoch started with.
    is_stale: bool,
}

impl Roster {
    /// The next epoch, of members that have stopped and newcomers.
    pub(super) fn choose(&self, now: Duration) -> Result<Epoch, Wait> {
        let ready: Vec<Id> =
            self.members().iter().copied().filter(|id| self.is_ready(*id, now)).collect();
        self.check_quorum(ready.len())?;
        let mut members = self.staying(&ready);
        self.cuts.separate(&mut members, now);
        // A state source may be among those that were separated: the newest state is that of the others.
        let newest = self.newest(&members, &ready);
        if newest.is_stale && !self.may_rewind(now) {
            return Err(Wait::StateSource {
                done: self.epoch.as_ref().map_or(0, |epoch| epoch.done),
            });
        }
        members.sort_by_key(|id| Reverse(self.is_newest(*id, newest.state)));
        self.admit(&mut members, now);
        members.truncate(self.target as usize);
        let have = members.len() as u32;
        if have < self.options.min {
            return Err(Wait::Members { have, min: self.options.min });
        }
        let state_sources = members.iter().filter(|id| self.is_newest(**id, newest.state)).count();
        let done = newest.state.filter(|_| state_sources > 0).map_or(0, |state| state.done);
        Ok(Epoch {
            number: self.number,
            coordinator: self.id,
            members,
            state_sources: state_sources as u32,
            done,
            target: self.target,
        })
    }

    /// Whether a member has stopped for the next epoch and is still there.
    pub(super) fn is_ready(&self, id: Id, now: Duration) -> bool {
        let has_stopped = self.peers.report(id).is_some_and(|report| {
            report.standing != Standing::Running
                && report.promised.to == self.id
                && report.promised.number >= self.number
        });
        has_stopped && !self.is_gone(id, now)
    }

    /// Checks that `have` members of the last epoch are enough to decide. Half of them are, for the epoch's own
    /// coordinator: another one would have the promises of more than half, at least one of them among these.
    pub(super) fn check_quorum(&self, have: usize) -> Result<(), Wait> {
        let need = match self.options.mode {
            CoordinatorMode::Saved => 0,
            CoordinatorMode::Unsaved => self.members().len().div_ceil(2),
        };
        if have < need {
            return Err(Wait::Quorum { have: have as u32, need: need as u32 });
        }
        Ok(())
    }

    fn newest(&self, members: &[Id], ready: &[Id]) -> Newest {
        let state = self.newest_state(members);
        let is_stale = self.epoch.as_ref().is_some_and(|epoch| match epoch.state_sources {
            // A member without state proves that no step was applied.
            0 => ready.is_empty() || (state.is_none() && self.newest_state(ready).is_some()),
            _ => state.is_none_or(|state| state.done < epoch.done),
        });
        Newest { state, is_stale }
    }

    fn newest_state(&self, members: &[Id]) -> Option<State> {
        members.iter().filter_map(|id| self.state(*id)).max()
    }

    /// Whether the newest state is given up: its sources have ended, or were waited for long enough.
    fn may_rewind(&self, now: Duration) -> bool {
        let is_over =
            self.members().iter().all(|id| self.peers.has_ended(*id) || self.is_ready(*id, now));
        let waited = self.waiting.is_some_and(|(wait, since)| {
            matches!(wait, Wait::StateSource { .. }) && now >= since + self.options.resume
        });
        is_over || waited
    }

    fn state(&self, id: Id) -> Option<State> {
        self.peers.report(id)?.state
    }

    fn is_newest(&self, id: Id, newest: Option<State>) -> bool {
        newest.is_some() && self.state(id) == newest
    }

    pub(super) fn is_leaving(&self, id: Id) -> bool {
        self.peers.report(id).is_some_and(|report| report.leaving)
    }

    /// Those that have stopped and stay, sources of the newest state first.
    fn staying(&self, ready: &[Id]) -> Vec<Id> {
        let newest = self.newest_state(ready);
        let stays = |id: &Id| !self.is_leaving(*id);
        let has_successor = ready.iter().any(|id| stays(id) && self.is_newest(*id, newest));
        let is_last = |id: &Id| !has_successor && self.is_newest(*id, newest);
        let mut staying: Vec<Id> =
            ready.iter().copied().filter(|id| stays(id) || is_last(id)).collect();
        staying.sort_by_key(|id| Reverse(self.is_newest(*id, newest)));
        staying
    }

    /// Whether a newcomer is kept apart from a member, or says that it cannot reach it.
    pub(super) fn is_parted(&self, newcomer: Id, member: Id, now: Duration) -> bool {
        let misses = |report: &Report| report.lost.contains(&member);
        self.cuts.parts(newcomer, member, now) || self.peers.report(newcomer).is_some_and(misses)
    }

    /// Adds newcomers that can reach all members, in the order in which they asked to join.
    fn admit(&self, members: &mut Vec<Id>, now: Duration) {
        for (id, _) in self.peers.newcomers(&self.options, now) {
            let is_known = self.members().contains(&id) || members.contains(&id);
            let is_cut = || members.iter().any(|member| self.is_parted(id, *member, now));
            if !is_known && !is_cut() && members.len() < self.target as usize {
                members.push(id);
            }
        }
    }
}
