//! Silence: reports in time, the loss of the coordinator, and who succeeds it.
//!
//! Members stand one after another, in the order of their places, so that the first living one
//! succeeds and the others are still free to follow it.

use std::time::Duration;

use super::{Leaving, Member, MemberAction, Run};
use crate::{Authority, Id, Occasion};

impl Member {
    pub(super) fn tick(&mut self, now: Duration, actions: &mut Vec<MemberAction>) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + self.options.beat();
        if let Leaving::Until(deadline) = self.leaving
            && now >= deadline
        {
            self.abort(actions);
            return self.left(actions);
        }
        if self.is_suspect(now) {
            self.suspect(now);
        }
        self.report(Occasion::Beat, now, actions);
        self.succeed(now, actions);
    }

    /// Takes time in which this process itself did not run off the silence of its coordinator.
    pub(super) fn excuse_absence(&mut self, now: Duration) {
        let late = now.saturating_sub(self.next_beat);
        if late > self.options.beat() {
            self.heard = self.heard.max((self.heard + late).min(now));
            self.next_beat = now;
        }
    }

    pub(super) fn is_suspect(&self, now: Duration) -> bool {
        let is_silent = self.suspected.is_some() || now > self.heard + self.options.silence;
        // A coordinator in this process is as alive as the member, even after both were stopped.
        self.coordinator != Some(self.id) && (self.coordinator.is_none() || is_silent)
    }

    /// Returns the coordinator for others to ask, if this process has met it and it is not suspect.
    pub(crate) fn known_coordinator(&self, now: Duration) -> Option<Id> {
        let has_met = self.epoch.is_some() || self.accepted.is_some();
        self.coordinator.filter(|_| has_met && !self.is_suspect(now))
    }

    pub(super) fn suspect(&mut self, now: Duration) {
        self.suspected.get_or_insert(now);
    }

    /// Forgets a coordinator in this process that has given up.
    pub(crate) fn lose_coordinator(&mut self, now: Duration) {
        self.coordinator = None;
        self.suspect(now);
    }

    pub(super) fn succeed(&mut self, now: Duration, actions: &mut Vec<MemberAction>) {
        let is_due = self.turn().zip(self.suspected).is_some_and(|(turn, suspected)| {
            now >= suspected + turn as u32 * self.options.silence / 2
        });
        if self.options.authority == Authority::Elected && self.leaving == Leaving::No && is_due {
            self.follow(self.id, now);
            actions.push(MemberAction::Stand);
        }
    }

    /// Returns how many members stand before this one, as far as it knows.
    fn turn(&self) -> Option<usize> {
        let epoch = self.epoch.as_ref()?;
        let before = &epoch.members[..epoch.place(self.id)?];
        let may_stand = |id: &&Id| self.coordinator != Some(**id) && !self.lost.contains(id);
        Some(before.iter().filter(may_stand).count())
    }

    /// Returns whether the training of the last epoch is under way.
    pub fn is_running(&self) -> bool {
        self.run == Run::Active
    }
}
