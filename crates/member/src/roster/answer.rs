//! Reports, and the answer to each: the message that its sender does not have yet.

use std::time::Duration;

use super::{Phase, Roster, RosterAction};
use crate::epoch::NUMBER_MAX;
use crate::{Id, Message, Occasion, Reason, Report, Standing, Wait};

impl Roster {
    pub(super) fn reported(
        &mut self,
        id: Id,
        report: Report,
        now: Duration,
        actions: &mut Vec<RosterAction>,
    ) {
        let numbers = [report.promised.number, report.epoch, report.accepted];
        let largest = numbers.into_iter().max().unwrap_or(0);
        if largest > NUMBER_MAX {
            return;
        }
        if let Some(reason) = self.objection(&report) {
            let message = Message::Refuse(reason);
            return actions.push(RosterAction::Send { to: id, message });
        }
        if !self.peers.hear(id, report.clone(), now) {
            return;
        }
        self.seen = self.seen.max(largest);
        self.complain(id, &report, now);
        let is_heartbeat = report.occasion == Occasion::Heartbeat;
        let is_adopting = self.phase == Phase::Adopting;
        if is_adopting {
            self.learn(id, report, now, actions);
        } else if self.is_contested(id, &report) {
            return self.bid(now, actions);
        } else if matches!(self.phase, Phase::Stopping { .. }) && self.members().contains(&id) {
            self.await_unless_ready(id, now);
        } else if let Phase::Proposed { epoch, .. } = &self.phase
            && self.knows(id, epoch.number)
        {
            self.outstanding.remove(&id);
        }
        if self.is_news(id) {
            self.proceed(now, actions);
        }
        // A message that the report has just caused is its answer.
        let is_told =
            |action: &RosterAction| matches!(action, RosterAction::Send { to, .. } if *to == id);
        if is_heartbeat && !actions.iter().any(is_told) {
            let message = self.answer(id, now);
            actions.push(RosterAction::Send { to: id, message });
        }
    }

    /// Returns whether a report may end the phase. Most reports do not: they come from members that
    /// train, thousands per second in a large world.
    fn is_news(&self, id: Id) -> bool {
        match self.phase {
            Phase::Steady => self.peers.report(id).is_some_and(|report| {
                let is_calm = report.standing == Standing::Running
                    && report.lost.is_empty()
                    && !report.leaving;
                !is_calm
            }),
            // The other phases end once nobody is waited for; to adopt, more than half of the promises are enough.
            _ => self.outstanding.is_empty() || self.phase == Phase::Adopting,
        }
    }

    fn await_unless_ready(&mut self, id: Id, now: Duration) {
        if self.is_ready(id, now) {
            self.outstanding.remove(&id);
        } else {
            self.outstanding.insert(id);
        }
    }

    /// Returns the reason why a newcomer can never be a member, if there is one.
    fn objection(&mut self, report: &Report) -> Option<Reason> {
        let (found, expected) =
            (report.fingerprint, *self.fingerprint.get_or_insert(report.fingerprint));
        let is_other = report.standing == Standing::Newcomer && found != expected;
        is_other.then_some(Reason::Fingerprint { found, expected })
    }

    fn complain(&mut self, id: Id, report: &Report, now: Duration) {
        let number = self.epoch_number();
        let is_member = |id: &Id| self.epoch.as_ref().is_some_and(|epoch| epoch.contains(*id));
        if report.lost.is_empty() || report.epoch != number || !is_member(&id) {
            return;
        }
        for of in report.lost.iter().filter(|of| is_member(of)) {
            self.cuts.complain(id, *of, number, &self.options, now);
        }
    }

    /// Returns the answer to the last report of a process.
    fn answer(&mut self, id: Id, now: Duration) -> Message {
        let Some(report) = self.peers.report(id) else { return Message::Heard };
        let is_mine = report.promised.to == self.id;
        let is_member = self.members().contains(&id);
        if self.phase == Phase::Adopting || (is_member && self.is_strange(report)) {
            return self.answer_stranger(id);
        }
        match (&self.phase, &self.epoch) {
            (Phase::Stopping { manner, .. }, _) if is_member && !self.is_ready(id, now) => {
                self.stop_message(manner)
            }
            // Members of the last epoch that are left out are told too: they count towards the quorum.
            (Phase::Proposed { epoch, .. }, _)
                if (epoch.contains(id) || (is_member && is_mine))
                    && !self.knows(id, epoch.number) =>
            {
                Message::Propose { epoch: epoch.clone(), last: self.epoch_number() }
            }
            (Phase::Steady, Some(epoch)) if is_member && report.epoch < epoch.number => {
                Message::Start(epoch.clone())
            }
            // A process that runs an older epoch learns that the others have left it behind.
            (_, Some(epoch))
                if !is_member
                    && report.epoch < epoch.number
                    && report.standing != Standing::Newcomer =>
            {
                Message::Start(epoch.clone())
            }
            _ => self.receipt(id, now),
        }
    }

    /// Returns whether a report shows a promise to another coordinator, for example of a member that
    /// promised before this coordinator took over.
    fn is_strange(&self, report: &Report) -> bool {
        report.promised.to != self.id
    }

    fn answer_stranger(&mut self, id: Id) -> Message {
        let Some(report) = self.peers.report(id) else { return Message::Heard };
        // The promise of a process that knows of no epoch excludes none.
        let is_newcomer = report.epoch == 0 && report.accepted == 0;
        if self.has_promised(id) || is_newcomer {
            return Message::Heard;
        }
        // A member leaves the coordinator that it has promised to only for a larger number.
        if report.promised.to != self.id {
            self.number = self.number.max(report.promised.number + 1);
        }
        Message::Prepare { number: self.number }
    }

    /// Returns the answer to a report whose sender lacks no message: the reason why it is in no epoch, if
    /// that is known.
    fn receipt(&self, id: Id, now: Duration) -> Message {
        let is_newcomer =
            self.peers.report(id).is_some_and(|report| report.standing == Standing::Newcomer);
        // The other reasons are for newcomers; a member that has not heard of its epoch's start reports as one, too.
        if !is_newcomer || self.members().contains(&id) {
            return self.waiting().map_or(Message::Heard, waits);
        }
        // The refusal makes the newcomer look again whether it still cannot reach these members.
        if let Some(member) = self.peers.report(id).and_then(|report| report.lost.first()) {
            return Message::Refuse(Reason::Unreachable { member: *member });
        }
        if let Some(wait) = self.waiting() {
            return waits(wait);
        }
        // The epoch that is being formed may include the newcomer.
        if self.phase != Phase::Steady {
            return Message::Heard;
        }
        let members = self.members();
        if let Some(member) = members.iter().find(|member| self.cuts.parts(id, **member, now)) {
            return Message::Refuse(Reason::Unreachable { member: *member });
        }
        if let Some(epoch) = self.epoch.as_ref().filter(|_| members.len() >= self.target as usize) {
            // A coordinator that was restarted does not know yet whether anybody trains.
            let is_heard = members.iter().any(|member| self.peers.report(*member).is_some());
            return match is_heard {
                true => Message::Refuse(Reason::Full { target: self.target }),
                false => waits(Wait::StateSource { done: epoch.done }),
            };
        }
        Message::Heard
    }
}

/// Tells a process that no epoch can be formed.
fn waits(wait: Wait) -> Message {
    Message::Refuse(Reason::Waiting { wait })
}
