//! Phases of a change (stop, propose, start), and the choice of the next epoch from the reports of the
//! last epoch's members.
//!
//! The newest state wins: members that have it are state sources and come first. A leaver stays for one more
//! epoch if no other member has this state.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Phase, Roster, RosterAction};
use crate::{
    CoordinatorMode, Epoch, Gone, Id, Interruption, Manner, Message, Note, Report, Standing, State,
    Wait,
};

impl Roster {
    pub(super) fn is_gone(&self, id: Id, now: Duration) -> bool {
        let number = self.epoch_number();
        let is_overdue = self.cuts.is_new(number) && self.peers.is_overdue(id, now);
        // A member that cannot reach it either spares the wait for a heartbeat.
        let is_missed = self.cuts.is_missed(id, number) && self.peers.is_closed(id);
        is_overdue || is_missed || self.peers.is_gone(id, &self.options, now)
    }

    /// Returns whether a process is known to be dead: it has ended, or its connection was closed
    /// [`crate::Options::silence`] ago and it has not come back. A process that is only silent may merely be
    /// cut off, and does not count as dead here.
    pub fn is_dead(&self, id: Id, now: Duration) -> bool {
        self.peers.is_dead(id, self.options.silence, now)
    }

    /// Stops the epoch if a member is lost or wants to leave, a newcomer wants to join, or the size has to
    /// change.
    pub(super) fn change_if_needed(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        if self.epoch.is_none() {
            return self.found_if_complete(now, actions);
        }
        if let Some(manner) = self.reason_to_stop(now) {
            self.interruption = self.interruption(now);
            self.stop(manner, now, actions);
        }
    }

    /// Returns the first reason to end the epoch in the middle of a step.
    fn interruption(&self, now: Duration) -> Option<Interruption> {
        let lost = |by: &Id| {
            let report = self.peers.report(*by).filter(|it| it.epoch == self.epoch_number())?;
            report.lost.first().map(|of| Interruption::Lost { by: *by, of: *of })
        };
        let stopped = |id: &Id| match () {
            () if self.is_gone(*id, now) => Some(Interruption::Away(*id)),
            () if self.has_stopped(*id) => Some(Interruption::Halted(*id)),
            () => None,
        };
        let members = self.members();
        // A loss comes first: it is why the others have stopped.
        members.iter().find_map(lost).or_else(|| members.iter().find_map(stopped))
    }

    fn reason_to_stop(&self, now: Duration) -> Option<Manner> {
        let members = self.members();
        if members.iter().any(|id| self.is_gone(*id, now) || self.has_stopped(*id)) {
            return Some(Manner::Abort);
        }
        let target = self.target as usize;
        let mut leavers: Vec<Id> =
            members.iter().copied().filter(|id| self.is_leaving(*id)).collect();
        let staying = || members.iter().filter(|id| !self.is_leaving(**id));
        leavers.extend(staying().skip(target));
        let join_request = self.last_join_request(now);
        let has_settled =
            join_request.is_some_and(|join_request| now >= join_request + self.options.settle);
        let is_wanted = staying().count() < target && has_settled;
        if leavers.len() == members.len() && members.len() < target && join_request.is_some() {
            // They stay for one more epoch, in which newcomers get their state.
            return Some(Manner::Finish { leavers: Vec::new() });
        }
        (is_wanted || !leavers.is_empty()).then_some(Manner::Finish { leavers })
    }

    /// Returns whether a member has stopped by itself, or can no longer start this epoch.
    fn has_stopped(&self, id: Id) -> bool {
        let number = self.epoch_number();
        self.peers.report(id).is_some_and(|report| {
            let is_behind = report.epoch < number && report.promised.number > number;
            let is_over = report.epoch == number && report.standing != Standing::Running;
            is_behind || is_over || (report.epoch == number && !report.lost.is_empty())
        })
    }

    /// Returns the time of the last join request of a newcomer that may join.
    fn last_join_request(&self, now: Duration) -> Option<Duration> {
        let members = self.members();
        let may_join = |id: Id| {
            !members.contains(&id) && !members.iter().any(|of| self.is_parted(id, *of, now))
        };
        let newcomers = self.peers.newcomers(&self.options, now);
        newcomers.iter().filter(|(id, _)| may_join(*id)).map(|(_, asked)| *asked).max()
    }

    /// Proposes the first epoch when enough processes have asked to join, and either all have joined or
    /// no more are expected.
    fn found_if_complete(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        let have = self.peers.newcomers(&self.options, now).len() as u32;
        if have < self.options.min {
            return self.wait(Wait::Members { have, min: self.options.min }, now, actions);
        }
        let settled =
            self.last_join_request(now).map(|join_request| join_request + self.options.settle);
        if have >= self.target || settled.is_some_and(|settled| now >= settled) {
            self.number = self.number.max(self.seen) + 1;
            // Too few are left if newcomers cannot reach each other: later reports and ticks try again.
            if let Ok(epoch) = self.choose(now) {
                self.propose(epoch, now, actions);
            }
        }
    }

    /// Asks all members to stop and to promise the next number.
    pub(super) fn stop(&mut self, manner: Manner, now: Duration, actions: &mut Vec<RosterAction>) {
        self.number = self.number.max(self.seen) + 1;
        self.seen = self.number;
        let members = self.members().to_vec();
        self.outstanding = members.iter().copied().filter(|id| !self.is_gone(*id, now)).collect();
        let message = self.stop_message(&manner);
        self.send(&members, &message, actions);
        self.phase = Phase::Stopping { manner, since: now };
    }

    pub(super) fn stop_message(&self, manner: &Manner) -> Message {
        let last = self.epoch_number();
        Message::Stop { number: self.number, last, manner: manner.clone() }
    }

    pub(super) fn propose_if_stopped(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        let Phase::Stopping { manner, since } = &self.phase else { return };
        let (is_gentle, since) = (*manner != Manner::Abort, *since);
        let is_broken = self.members().iter().any(|id| self.is_gone(*id, now))
            || self.cuts.is_new(self.epoch_number());
        if is_gentle && is_broken {
            // The step cannot be completed.
            self.interruption = self.interruption(now);
            self.phase = Phase::Stopping { manner: Manner::Abort, since: now };
            let message = self.stop_message(&Manner::Abort);
            let members = self.members().to_vec();
            return self.send(&members, &message, actions);
        }
        // A process that still answers but cannot stop has hung. Gentle stops wait for a step, however long it takes.
        let has_hung = !is_gentle && now > since + self.options.silence;
        let waits_for = |id: &Id| !has_hung && !self.is_gone(*id, now) && !self.is_ready(*id, now);
        let outstanding = self.outstanding.iter().copied().filter(waits_for).collect();
        self.outstanding = outstanding;
        if !self.outstanding.is_empty() {
            return;
        }
        match self.choose(now) {
            Ok(epoch) => self.propose(epoch, now, actions),
            Err(wait) => self.wait(wait, now, actions),
        }
    }

    /// Calls members that have not stopped although the job waits for them. They may be back and obey another
    /// coordinator, which does not know this one.
    pub(super) fn call_missing(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        let mut missing = self.members().to_vec();
        missing.retain(|id| !self.is_ready(*id, now));
        let is_strange =
            |id: &Id| self.peers.report(*id).is_some_and(|report| report.promised.to != self.id);
        let (strangers, own): (Vec<Id>, Vec<Id>) = missing.into_iter().partition(is_strange);
        let Phase::Stopping { manner, .. } = &self.phase else { return };
        let message = self.stop_message(manner);
        self.send(&own, &message, actions);
        self.send(&strangers, &Message::Prepare { number: self.number }, actions);
    }

    fn propose(&mut self, epoch: Epoch, now: Duration, actions: &mut Vec<RosterAction>) {
        let concerned = self.concerned(&epoch);
        let waits_for = |id: &Id| epoch.contains(*id) || !self.is_gone(*id, now);
        self.outstanding = concerned.iter().copied().filter(waits_for).collect();
        self.seen = self.seen.max(epoch.number);
        let message = Message::Propose { epoch: epoch.clone(), last: self.epoch_number() };
        self.phase = Phase::Proposed { epoch, since: now };
        actions.push(RosterAction::Save);
        self.send(&concerned, &message, actions);
    }

    /// Returns the members of an epoch, and those of the one before it.
    pub(super) fn concerned(&self, epoch: &Epoch) -> Vec<Id> {
        let old = self.members().iter().filter(|id| !epoch.contains(**id));
        epoch.members.iter().chain(old).copied().collect()
    }

    /// Returns whether a process knows the proposed epoch and obeys this coordinator.
    pub(super) fn knows(&self, id: Id, number: u32) -> bool {
        self.peers.report(id).is_some_and(|report| {
            report.accepted.max(report.epoch) >= number && report.promised.to == self.id
        })
    }

    /// Starts the proposed epoch when all of its members know it, and enough members of the last epoch that
    /// no other coordinator can fail to learn of it.
    pub(super) fn start_if_known(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        let Phase::Proposed { epoch, since } = &self.phase else { return };
        let is_lost = |id: &Id| {
            self.is_gone(*id, now)
                || self
                    .peers
                    .report(*id)
                    .is_some_and(|report| report.promised.number > epoch.number)
        };
        // A member that has promised another number, or stays silent about this one, never starts it. A reason
        // for which the last epoch ended says more than that this one did not start.
        if epoch.members.iter().any(is_lost) || now > *since + self.options.silence {
            self.interruption.get_or_insert(Interruption::Unstarted { number: epoch.number });
            return self.stop(Manner::Abort, now, actions);
        }
        let knows = |id: &&Id| self.knows(**id, epoch.number);
        let have = self.members().iter().filter(knows).count();
        if epoch.members.iter().all(|id| knows(&id)) && self.check_quorum(have).is_ok() {
            let epoch = epoch.clone();
            self.start(epoch, now, actions);
        }
    }

    fn start(&mut self, epoch: Epoch, now: Duration, actions: &mut Vec<RosterAction>) {
        let concerned = self.concerned(&epoch);
        let notes = self.notes(&epoch, now);
        (self.phase, self.floor, self.waiting) = (Phase::Steady, epoch.number, None);
        self.interruption = None;
        self.outstanding.clear();
        self.unstarted.clear();
        self.epoch = Some(epoch.clone());
        actions.push(RosterAction::Save);
        self.send(&concerned, &Message::Start(epoch), actions);
        actions.extend(notes.into_iter().map(RosterAction::Say));
    }

    fn notes(&self, epoch: &Epoch, now: Duration) -> Vec<Note> {
        let joined = epoch.members.iter().filter(|id| !self.members().contains(id));
        let gone = self.members().iter().filter(|id| !epoch.contains(**id));
        let gone = gone.map(|id| (*id, self.why_gone(*id, epoch, now)));
        let mut notes = vec![Note::Started {
            number: epoch.number,
            joined: joined.copied().collect(),
            gone: gone.collect(),
            interruption: self.interruption,
        }];
        if let Some(last) = self.epoch.as_ref().filter(|last| loses_steps(last, epoch)) {
            let to = (epoch.state_sources > 0).then_some(epoch.done);
            let told = |id: &Id| self.peers.report(*id)?.state.map(|state| state.done);
            let from = last.members.iter().filter_map(told).fold(last.done, u64::max);
            notes.push(Note::Rewound { number: epoch.number, from, to });
        }
        notes
    }

    fn why_gone(&self, id: Id, epoch: &Epoch, now: Duration) -> Gone {
        let is_cut = || epoch.members.iter().any(|member| self.cuts.parts(id, *member, now));
        match () {
            () if self.is_leaving(id) => Gone::Left,
            () if self.peers.has_ended(id) => Gone::Ended,
            () if self.is_gone(id, now) && self.peers.is_closed(id) => Gone::Closed,
            () if self.is_gone(id, now) => Gone::Silent,
            () if is_cut() => Gone::Cut,
            () if epoch.members.len() >= self.target as usize => Gone::Resized,
            () => Gone::Silent,
        }
    }
}

/// Returns whether `next` starts from an older state than `last` may have had.
fn loses_steps(last: &Epoch, next: &Epoch) -> bool {
    let has_witness = last.members.iter().any(|id| next.contains(*id));
    match (last.state_sources, next.state_sources) {
        // Without a member that has no state, steps may have been applied.
        (0, 0) => !has_witness,
        (0, _) => false,
        _ => next.state_sources == 0 || next.done < last.done,
    }
}

/// Newest state among the members that have stopped.
struct Newest {
    state: Option<State>,
    /// Whether this state is older than the state with which the last epoch started.
    is_stale: bool,
}

impl Roster {
    /// Returns the next epoch, with members that have stopped and newcomers.
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

    /// Returns whether a member has stopped for the next epoch and is still there.
    pub(super) fn is_ready(&self, id: Id, now: Duration) -> bool {
        let has_stopped = self.peers.report(id).is_some_and(|report| {
            report.standing != Standing::Running
                && report.promised.to == self.id
                && report.promised.number >= self.number
        });
        has_stopped && !self.is_gone(id, now)
    }

    /// Checks that `have` members of the last epoch are enough to decide. For the epoch's own coordinator,
    /// half of them are: another coordinator would need the promises of more than half, at least one of which
    /// is among these.
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

    /// Returns whether the newest state is given up, because its sources have ended or the coordinator
    /// has waited for them long enough.
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

    /// Returns the members that have stopped and stay; those with the newest state come first.
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

    /// Returns whether a newcomer is kept apart from a member, or reports that it cannot reach it.
    pub(super) fn is_parted(&self, newcomer: Id, member: Id, now: Duration) -> bool {
        let misses = |report: &Report| report.lost.contains(&member);
        self.cuts.parts(newcomer, member, now) || self.peers.report(newcomer).is_some_and(misses)
    }

    /// Adds newcomers that can reach all members, in the order in which they asked to join.
    fn admit(&self, members: &mut Vec<Id>, now: Duration) {
        for (id, _) in self.peers.newcomers(&self.options, now) {
            // A member that has not heard of the last epoch's start still reports as a newcomer: `staying` has decided.
            let is_known = self.members().contains(&id) || members.contains(&id);
            let is_cut = || members.iter().any(|member| self.is_parted(id, *member, now));
            if !is_known && !is_cut() && members.len() < self.target as usize {
                members.push(id);
            }
        }
    }
}
