//! Adoption: a coordinator without state learns the last epoch from its members.
//!
//! It asks them to obey it and to report what they know; training continues meanwhile. With the promises of
//! more than half of an epoch's members, it knows every later epoch that has started, since half of these
//! members know of such an epoch before it starts. A later epoch that was proposed cannot continue if
//! more than half of its members have promised without having started it: the epoch needs all of its
//! members for a step, and half of them for a change.

use std::time::Duration;

use super::{Phase, Roster, RosterAction};
use crate::{Epoch, Id, Known, Message, Note, Options, Report, Wait};

impl Roster {
    /// Creates a coordinator without state of a job that may have begun.
    pub fn adopt(id: Id, options: Options, now: Duration) -> Roster {
        let mut roster = Roster::found(id, options);
        // Nobody is known yet whom it could ask.
        roster.bid(now, &mut Vec::new());
        roster
    }

    /// Asks all members for a promise with a number larger than any so far.
    pub(super) fn bid(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        self.number = self.number.max(self.seen) + 1;
        (self.floor, self.seen) = (self.number, self.number);
        self.phase = Phase::Adopting;
        self.await_promises(now);
        self.prepare(actions);
    }

    fn await_promises(&mut self, now: Duration) {
        for id in self.askable() {
            self.peers.expect(id, now);
        }
        let has_promised = |id: &Id| self.has_promised(*id);
        self.outstanding = self.members().iter().copied().filter(|id| !has_promised(id)).collect();
    }

    /// Returns whether a process obeys this coordinator and has reported all epochs that it knows; neither is
    /// enough without the other.
    pub(super) fn has_promised(&self, id: Id) -> bool {
        let obeys = self.peers.report(id).is_some_and(|report| {
            report.promised.to == self.id && report.promised.number >= self.floor
        });
        obeys && self.peers.has_told(id)
    }

    /// Returns the members of the last epoch, and of the epochs that may have started after it.
    fn askable(&self) -> Vec<Id> {
        let unstarted = self.unstarted.iter().flat_map(|epoch| &epoch.members);
        let mut ids: Vec<Id> = self.members().iter().chain(unstarted).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub(super) fn prepare(&self, actions: &mut Vec<RosterAction>) {
        let mut to = self.askable();
        to.retain(|id| !self.has_promised(*id));
        self.send(&to, &Message::Prepare { number: self.number }, actions);
    }

    pub(super) fn learn(
        &mut self,
        id: Id,
        report: Report,
        now: Duration,
        actions: &mut Vec<RosterAction>,
    ) {
        let promised = report.promised;
        if let Some(known) = report.known {
            self.take_over(*known, now, actions);
        }
        if self.has_promised(id) {
            self.outstanding.remove(&id);
            return;
        }
        // Only a larger number than that of its promise moves a member to promise again. Promises of others do not
        // count.
        let is_rival = promised.to != self.id && promised.number >= self.number;
        if self.members().contains(&id) && is_rival {
            self.bid(now, actions);
        }
    }

    fn take_over(&mut self, known: Known, now: Duration, actions: &mut Vec<RosterAction>) {
        let number = self.epoch_number();
        let mut is_new = false;
        if let Some(epoch) = known.epoch.filter(|epoch| epoch.number > number && epoch.is_sound()) {
            self.target = epoch.target;
            self.epoch = Some(epoch);
            is_new = true;
        }
        let is_later = |epoch: &Epoch| epoch.number > self.epoch_number() && epoch.is_sound();
        if let Some(epoch) = known.accepted.filter(is_later)
            && !self.unstarted.contains(&epoch)
        {
            self.unstarted.push(epoch);
            is_new = true;
        }
        if is_new {
            self.await_promises(now);
            self.prepare(actions);
        }
    }

    pub(super) fn adopt_if_possible(&mut self, now: Duration, actions: &mut Vec<RosterAction>) {
        match self.obstacle() {
            Some(wait) => self.wait(wait, now, actions),
            None => {
                (self.phase, self.waiting) = (Phase::Steady, None);
                self.unstarted.clear();
                self.outstanding.clear();
                actions.push(RosterAction::Save);
                actions.push(RosterAction::Say(Note::Adopted { number: self.epoch_number() }));
                self.proceed(now, actions);
            }
        }
    }

    fn obstacle(&self) -> Option<Wait> {
        if self.epoch.is_none() {
            return Some(Wait::Unknown);
        }
        let size = self.members().len();
        let (have, need) = (size - self.outstanding.len(), size / 2 + 1);
        if have < need {
            return Some(Wait::Quorum { have: have as u32, need: need as u32 });
        }
        let may_run = self.unstarted.iter().find(|epoch| self.may_have_started(epoch))?;
        Some(Wait::Proposed { number: may_run.number })
    }

    /// Returns whether a proposed epoch may have started without this coordinator's knowledge, so that its
    /// coordinator may continue with half of its members. If more than half of them have promised
    /// without having started the epoch, it can neither continue nor change.
    fn may_have_started(&self, epoch: &Epoch) -> bool {
        let prevents = |id: &&Id| {
            let report = self.peers.report(**id);
            self.has_promised(**id) && report.is_some_and(|report| report.epoch < epoch.number)
        };
        let count = epoch.members.iter().filter(prevents).count();
        epoch.number > self.epoch_number() && 2 * count <= epoch.members.len()
    }

    /// Returns whether a report shows that another coordinator may have taken over.
    pub(super) fn is_contested(&self, id: Id, report: &Report) -> bool {
        let has_other = report.promised.to != self.id && report.promised.number > self.floor;
        report.epoch > self.epoch_number() || (has_other && self.members().contains(&id))
    }
}
