//! Messages of a coordinator, and the conditions under which a member obeys them.
//!
//! A member obeys one coordinator at a time, and never an older promise. It promises to obey another
//! coordinator only in answer to a prepare message with a larger number, and only if it has got no
//! message from its own coordinator lately. A proposed epoch starts only while the promise with which it
//! was accepted is still the member's last promise. A member that has since promised to another
//! coordinator prevents the epoch forever, and that coordinator relies on this.

use std::time::Duration;

use super::{Leaving, Member, MemberAction, Run};
use crate::epoch::NUMBER_MAX;
use crate::{Epoch, Id, Known, Manner, Message, Promise, State};

impl Member {
    pub(super) fn receive(
        &mut self,
        from: Id,
        message: Message,
        now: Duration,
        actions: &mut Vec<MemberAction>,
    ) {
        if self.coordinator == Some(from) {
            (self.heard, self.is_suspected) = (now, false);
        }
        match message {
            Message::Prepare { number } => self.prepared(from, number, now, actions),
            Message::Stop { number, last, manner } => {
                self.catch_up(from, last, now, actions);
                self.stop(Promise { number, to: from }, manner, actions);
            }
            Message::Propose { epoch, last } => {
                self.catch_up(from, last, now, actions);
                self.proposed(from, epoch, now, actions);
            }
            Message::Start(epoch) => self.started(from, epoch, now, actions),
            Message::Refuse(reason) => actions.push(MemberAction::Refused(reason)),
            // Nothing follows from `Heard` but what was noted above, and the others are for coordinators.
            Message::Bye | Message::Heard | Message::Report(_) | Message::Resize(_) => {}
        }
    }

    fn prepared(&mut self, from: Id, number: u32, now: Duration, actions: &mut Vec<MemberAction>) {
        let mine = self.promised;
        // A coordinator repeats its request until it has the promise, so the same number from it is not old.
        let is_newer = number > mine.number || (number == mine.number && from == mine.to);
        let may_follow = from == mine.to || self.coordinator == Some(from) || self.is_free(now);
        if is_newer && may_follow && number <= NUMBER_MAX {
            self.promised = Promise { number, to: from };
            self.follow(from, now);
        }
        // A coordinator that is not obeyed sees in the report which number it must exceed.
        let known = Known { epoch: self.epoch.clone(), accepted: self.accepted.clone() };
        self.report_to(from, Some(Box::new(known)), actions);
    }

    /// Returns whether this process may follow another coordinator, because it has lost its own or never
    /// had one.
    fn is_free(&self, now: Duration) -> bool {
        let is_stranger = self.epoch.is_none() && self.accepted.is_none();
        // In half of the silence four heartbeats were sent, and a coordinator that is there answers each.
        is_stranger || self.is_suspect(now) || now > self.heard + self.options.silence / 2
    }

    /// Reports to a coordinator from now on. The coordinator's silence is measured from `now`.
    fn follow(&mut self, coordinator: Id, now: Duration) {
        self.coordinator = Some(coordinator);
        (self.heard, self.is_suspected) = (now, false);
    }

    fn stop(&mut self, by: Promise, manner: Manner, actions: &mut Vec<MemberAction>) {
        let Promise { number, to } = by;
        if self.promised.to == to && (self.promised.number..=NUMBER_MAX).contains(&number) {
            self.promised = by;
            match manner {
                Manner::Abort => self.abort(actions),
                Manner::Finish { leavers } if self.run == Run::Active => {
                    self.run = Run::Finishing;
                    actions.push(MemberAction::Finish { leavers });
                }
                // The coordinator repeats its order; a run that is ending, or has ended, needs no second one.
                Manner::Finish { .. } => {}
            }
        }
        // A coordinator that is not obeyed learns from the report whom this process has promised to.
        self.report_to(to, None, actions);
    }

    fn proposed(&mut self, from: Id, epoch: Epoch, now: Duration, actions: &mut Vec<MemberAction>) {
        let Promise { number, to } = self.promised;
        let is_late = self.epoch.as_ref().is_some_and(|known| epoch.number <= known.number);
        let is_newer = epoch.number > number || (epoch.number == number && to == from);
        // A process in no epoch may follow any coordinator, a member only the one that it has promised to.
        let may_follow = to == from || !self.is_member();
        let is_valid = epoch.coordinator == from && epoch.is_sound();
        if is_newer && !is_late && may_follow && is_valid {
            self.promised = Promise { number: epoch.number, to: from };
            self.accepted = Some(epoch);
            self.follow(from, now);
            // A run that was not told to stop belongs to an epoch that the others have left.
            self.abort(actions);
        }
        self.report_to(from, None, actions);
    }

    fn started(&mut self, from: Id, epoch: Epoch, now: Duration, actions: &mut Vec<MemberAction>) {
        let is_new = self.epoch.as_ref().is_none_or(|known| epoch.number > known.number);
        if !is_new || !epoch.is_sound() {
            return self.report_to(from, None, actions);
        }
        if !epoch.contains(self.id) {
            return self.fenced(from, epoch, now, actions);
        }
        // Only what this process has agreed to starts, once its last run has ended: the coordinator repeats the
        // message until the reports say so.
        let promise = Promise { number: epoch.number, to: epoch.coordinator };
        if self.promised == promise
            && self.accepted.as_ref() == Some(&epoch)
            && self.run == Run::Idle
        {
            self.follow(from, now);
            self.start(epoch, actions);
        }
        self.report_to(from, None, actions);
    }

    fn start(&mut self, epoch: Epoch, actions: &mut Vec<MemberAction>) {
        self.enter(epoch.clone());
        self.run = Run::Active;
        actions.push(MemberAction::Run(epoch));
    }

    fn enter(&mut self, epoch: Epoch) {
        // The state of a source counts as one of this epoch: it equals what the others take over from it.
        if epoch.has_state(self.id) {
            self.state = Some(State { epoch: epoch.number, done: epoch.done });
        } else if epoch.state_sources == 0 {
            // All load the last checkpoint: whoever has not done so shows that no step was applied.
            self.state = None;
        }
        // Any other member keeps its older state until it is synced: if all sources are lost, it may be the newest.
        self.accepted = None;
        self.lost.clear();
        self.epoch = Some(epoch);
    }

    /// Records that the proposed epoch has started and ended without this process. The process must
    /// report this epoch to the coordinator, since the members of that epoch decide the next one.
    fn catch_up(&mut self, from: Id, last: u32, now: Duration, actions: &mut Vec<MemberAction>) {
        let has_started = |epoch: &mut Epoch| epoch.number == last && epoch.coordinator == from;
        // Until the run of an older epoch has ended, its steps would count as steps of the one entered here.
        if self.run != Run::Idle {
            return;
        }
        match self.accepted.take_if(has_started) {
            Some(epoch) if epoch.contains(self.id) => self.enter(epoch),
            Some(epoch) => self.fenced(from, epoch, now, actions),
            None => {}
        }
    }

    /// Continues as a newcomer without state, because the others have continued without this process.
    fn fenced(&mut self, from: Id, epoch: Epoch, now: Duration, actions: &mut Vec<MemberAction>) {
        let was_member = self.is_member();
        self.abort(actions);
        self.state = None;
        self.lost.clear();
        self.accepted.take_if(|accepted| accepted.number <= epoch.number);
        let number = epoch.number;
        self.epoch = Some(epoch);
        self.follow(from, now);
        // It has no state any more that the others could need.
        if self.leaving != Leaving::No {
            return self.left(actions);
        }
        if was_member {
            actions.push(MemberAction::Fenced { number });
        }
        self.report_to(from, None, actions);
    }
}
