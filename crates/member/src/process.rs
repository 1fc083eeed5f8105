//! One process of a job whose members host the coordinator: a member, and the roster if it is its turn.
//!
//! Messages between the two stay in the process. A process that does not coordinate sends newcomers to
//! the one that does.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{
    Id, Known, Member, MemberAction, MemberEvent, Message, Note, Options, Roster, RosterAction,
    RosterEvent, Wait,
};

/// Event that reaches a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A message of another process.
    Message {
        /// Sender.
        from: Id,
        /// The message.
        message: Message,
    },
    /// Event of the training or of its links.
    Member(MemberEvent),
    /// The connection to a process has closed.
    Closed(Id),
    /// The deadline has passed.
    Tick,
}

/// Action of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessAction {
    /// Sends a message.
    Send {
        /// Receiver.
        to: Id,
        /// The message.
        message: Message,
    },
    /// Action on the training; never [`MemberAction::Send`] or [`MemberAction::Stand`].
    Member(MemberAction),
    /// Makes the coordinator's state durable before anything that follows.
    Save,
    /// Tells people.
    Say(Note),
}

/// State machine of a process.
#[derive(Clone, Debug)]
pub struct Process {
    member: Member,
    roster: Option<Roster>,
    options: Options,
}

impl Process {
    /// Creates a newcomer.
    pub fn new(id: Id, options: Options, fingerprint: u64) -> Process {
        Process { member: Member::new(id, options, fingerprint), roster: None, options }
    }

    /// Creates the first process of a new job, which coordinates it.
    pub fn founder(id: Id, options: Options, fingerprint: u64) -> Process {
        let mut process = Process::new(id, options, fingerprint);
        process.roster = Some(Roster::found(id, options));
        process.member.follow(id, Duration::ZERO);
        process
    }

    /// Returns the member.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the coordinator, if it is in this process.
    pub fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// Returns when [`ProcessEvent::Tick`] is due.
    pub fn deadline(&self) -> Duration {
        let member = self.member.deadline();
        self.roster.as_ref().map_or(member, |roster| roster.deadline().min(member))
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: ProcessEvent, now: Duration) -> Vec<ProcessAction> {
        let mut work = Work { now, ..Work::default() };
        match event {
            ProcessEvent::Message { from, message } => self.deliver(from, message, &mut work),
            ProcessEvent::Member(event) => self.member_on(event, &mut work),
            ProcessEvent::Closed(id) => {
                self.roster_on(RosterEvent::Closed(id), &mut work);
                self.member_on(MemberEvent::Lost(id), &mut work);
            }
            ProcessEvent::Tick => {
                self.roster_on(RosterEvent::Tick, &mut work);
                let beat = self.member.deadline();
                self.member_on(MemberEvent::Tick, &mut work);
                if self.member.deadline() > beat {
                    self.inquire(None, &mut work);
                }
            }
        }
        while let Some(message) = work.internal.pop_front() {
            self.deliver(self.member.id(), message, &mut work);
        }
        self.agree(work.now);
        work.actions
    }

    /// Makes member and roster agree: a process that follows another coordinator has no roster, and a member
    /// whose own coordinator has given up has none.
    fn agree(&mut self, now: Duration) {
        let is_own = self.member.coordinator() == Some(self.member.id());
        if !is_own {
            self.roster = None;
        } else if self.roster.is_none() {
            self.member.lose_coordinator(now);
        }
    }

    /// Asks other processes while the roster here waits for members: the job may go on elsewhere.
    fn inquire(&mut self, at: Option<Id>, work: &mut Work) {
        let waits = |wait: Wait| matches!(wait, Wait::Quorum { .. } | Wait::Proposed { .. });
        if self.roster.as_ref().and_then(Roster::waiting).is_some_and(waits)
            && let Some(MemberAction::Send { to, message }) = self.member.inquire(at)
        {
            self.send(to, message, work);
        }
    }

    fn deliver(&mut self, from: Id, message: Message, work: &mut Work) {
        match message {
            Message::Report(_) if self.roster.is_none() => self.redirect(from, work),
            Message::Report(report) => {
                self.roster_on(RosterEvent::Report { id: from, report }, work);
            }
            Message::Resize(target) if self.roster.is_some() => {
                self.roster_on(RosterEvent::Resize { id: from, target }, work);
            }
            Message::Resize(_) => self.redirect(from, work),
            Message::Redirect(to) if self.roster.is_some() => self.inquire(Some(to), work),
            Message::Bye => {
                self.roster_on(RosterEvent::Ended(from), work);
                self.member_on(MemberEvent::Message { from, message: Message::Bye }, work);
            }
            message => self.member_on(MemberEvent::Message { from, message }, work),
        }
    }

    /// Names the coordinator that this process follows to a process that takes this one for it.
    fn redirect(&self, from: Id, work: &mut Work) {
        let me = self.member.id();
        let is_other = |to: &Id| *to != from && *to != me && from != me;
        if let Some(to) = self.member.known_coordinator(work.now).filter(is_other) {
            let message = Message::Redirect(to);
            work.actions.push(ProcessAction::Send { to: from, message });
        }
    }

    fn member_on(&mut self, event: MemberEvent, work: &mut Work) {
        for action in self.member.on(event, work.now) {
            match action {
                MemberAction::Send { to, message } => self.send(to, message, work),
                MemberAction::Stand => self.stand(work),
                MemberAction::Left => {
                    self.say_goodbye(work);
                    work.actions.push(ProcessAction::Member(MemberAction::Left));
                }
                action => work.actions.push(ProcessAction::Member(action)),
            }
        }
    }

    fn roster_on(&mut self, event: RosterEvent, work: &mut Work) {
        if let Some(roster) = &mut self.roster {
            let actions = roster.on(event, work.now);
            self.perform(actions, work);
        }
    }

    fn perform(&mut self, actions: Vec<RosterAction>, work: &mut Work) {
        for action in actions {
            match action {
                RosterAction::Send { to, message } => self.send(to, message, work),
                RosterAction::Save => work.actions.push(ProcessAction::Save),
                RosterAction::Say(note) => work.actions.push(ProcessAction::Say(note)),
                RosterAction::StepDown { to } => {
                    self.roster = None;
                    self.member.follow(to, work.now);
                }
            }
        }
    }

    fn stand(&mut self, work: &mut Work) {
        let known = Known {
            epoch: self.member.epoch().cloned(),
            accepted: self.member.accepted().cloned(),
        };
        let seen = self.member.promised().number;
        let (roster, actions) =
            Roster::adopt(self.member.id(), self.options, known, seen, work.now);
        self.roster = Some(roster);
        self.perform(actions, work);
        // The new coordinator has not seen the connections close that made it stand.
        for lost in self.member.lost().to_vec() {
            self.roster_on(RosterEvent::Closed(lost), work);
        }
    }

    /// Tells all that the coordinator goes, so that the next one stands at once.
    fn say_goodbye(&mut self, work: &mut Work) {
        let Some(roster) = self.roster.take() else { return };
        let members = roster.epoch().map_or(&[][..], |epoch| &epoch.members);
        for to in members.iter().filter(|id| **id != self.member.id()) {
            work.actions.push(ProcessAction::Send { to: *to, message: Message::Bye });
        }
    }

    fn send(&self, to: Id, message: Message, work: &mut Work) {
        if to == self.member.id() {
            work.internal.push_back(message);
        } else {
            work.actions.push(ProcessAction::Send { to, message });
        }
    }
}

/// Messages within the process, and actions outside of it.
#[derive(Default)]
struct Work {
    now: Duration,
    internal: VecDeque<Message>,
    actions: Vec<ProcessAction>,
}
