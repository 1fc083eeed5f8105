//! One process of the job: its epoch, its promise, its state.
//!
//! The edge runs the training and reports its events; this state machine decides when to stop and what to run
//! next. It reports to the coordinator once per heartbeat.

mod coordination;

use std::time::Duration;

use crate::{
    Epoch, Id, Known, Message, Occasion, Options, Promise, Reason, Report, Standing, State,
};

/// Event that reaches a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A message of another process.
    Message {
        /// Sender.
        from: Id,
        /// The message.
        message: Message,
    },
    /// A connection has closed, or a peer of the epoch does not answer.
    Lost(Id),
    /// Members of the last epoch that a newcomer cannot reach at the moment; replaces the earlier list.
    Unreachable(Vec<Id>),
    /// The run of the epoch has ended; no further step is applied.
    Halted,
    /// The state of the epoch has been received or loaded.
    Synced {
        /// Number of the last step in the state.
        done: u64,
    },
    /// A step was applied.
    Applied {
        /// Number of the step.
        done: u64,
    },
    /// The process wants to leave.
    Leave,
    /// A coordinator to which there is a connection. A coordinator that restarts without its state has
    /// another id.
    Coordinator(Id),
    /// The time of [`Member::deadline`] has come.
    Tick,
}

/// Action of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Sends a message.
    Send {
        /// Receiver.
        to: Id,
        /// The message.
        message: Message,
    },
    /// Meets the members of the epoch, takes over the state, and trains.
    Run(Epoch),
    /// Ends the run after the next step, by a flag in the messages of that step.
    Finish {
        /// Members that hand on their residuals after this step.
        leavers: Vec<Id>,
    },
    /// Ends the run at once; the step has no effect.
    Abort,
    /// The process is not in epoch `number`, and joins again as a newcomer without state.
    Fenced {
        /// Number of the epoch that has started without this process.
        number: u32,
    },
    /// The coordinator has refused the process, for now or permanently.
    Refused(Reason),
    /// The process has left, and may end.
    Left,
}

/// Activity of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Idle,
    Active,
    Finishing,
    Aborting,
}

/// Wish to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    Until(Duration),
    Left,
}

/// State machine of one process.
#[derive(Clone, Debug)]
pub struct Member {
    id: Id,
    options: Options,
    fingerprint: u64,
    promised: Promise,
    /// Last epoch that is known to have started, with or without this process.
    epoch: Option<Epoch>,
    accepted: Option<Epoch>,
    state: Option<State>,
    run: Run,
    lost: Vec<Id>,
    leaving: Leaving,
    coordinator: Option<Id>,
    /// Time at which the last message of the coordinator arrived.
    heard: Duration,
    /// Whether the connection to the coordinator was lost since then.
    is_suspected: bool,
    /// Coordinator to which there is a connection.
    contact: Option<Id>,
    heartbeat: u64,
    next_heartbeat: Duration,
}

impl Member {
    /// Creates a newcomer, which reports to the coordinator once it knows of one.
    pub fn new(id: Id, options: Options, fingerprint: u64) -> Member {
        Member {
            id,
            options,
            fingerprint,
            promised: Promise::NONE,
            epoch: None,
            accepted: None,
            state: None,
            run: Run::Idle,
            lost: Vec::new(),
            leaving: Leaving::No,
            coordinator: None,
            heard: Duration::ZERO,
            is_suspected: false,
            contact: None,
            heartbeat: 0,
            next_heartbeat: Duration::ZERO,
        }
    }

    /// Returns the id of the process.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Returns the last epoch that is known to have started, with or without this process.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.epoch.as_ref()
    }

    /// Returns the epoch that was proposed and has not started.
    pub fn accepted(&self) -> Option<&Epoch> {
        self.accepted.as_ref()
    }

    /// Returns the training state that the process can give to others.
    pub fn state(&self) -> Option<State> {
        self.state
    }

    /// Returns the coordinator that this process has promised to obey, and the number of the promise.
    pub fn promised(&self) -> Promise {
        self.promised
    }

    /// Returns the members of this process's epoch that the process cannot reach.
    pub fn lost(&self) -> &[Id] {
        &self.lost
    }

    /// Returns the activity of the process.
    pub fn standing(&self) -> Standing {
        match (self.run, self.is_member()) {
            (Run::Idle, true) => Standing::Halted,
            (Run::Idle, false) => Standing::Newcomer,
            _ => Standing::Running,
        }
    }

    /// Returns when [`MemberEvent::Tick`] is due.
    pub fn deadline(&self) -> Duration {
        if self.leaving == Leaving::Left { Duration::MAX } else { self.next_heartbeat }
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: MemberEvent, now: Duration) -> Vec<MemberAction> {
        let mut actions = Vec::new();
        if self.leaving == Leaving::Left {
            return actions;
        }
        self.excuse_pause(now);
        match event {
            MemberEvent::Message { from, message } => {
                self.receive(from, message, now, &mut actions)
            }
            MemberEvent::Lost(peer) => self.lose(peer, now, &mut actions),
            // A member of the epoch tells by its run whom it cannot reach.
            MemberEvent::Unreachable(_) if self.is_member() => {}
            MemberEvent::Unreachable(peers) => self.lost = peers,
            MemberEvent::Halted => self.halted(now, &mut actions),
            MemberEvent::Synced { done } | MemberEvent::Applied { done } => self.advance(done),
            MemberEvent::Leave => self.leave(now, &mut actions),
            MemberEvent::Coordinator(id) => self.contact = Some(id),
            MemberEvent::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn is_member(&self) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| epoch.contains(self.id))
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<MemberAction>) {
        if now < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = now + self.options.heartbeat();
        if let Leaving::Until(deadline) = self.leaving
            && now >= deadline
        {
            self.abort(actions);
            return self.left(actions);
        }
        self.is_suspected = self.is_suspect(now);
        self.report(Occasion::Heartbeat, now, actions);
    }

    /// If this process itself did not run for some time, excludes this time from the silence of its
    /// coordinator.
    fn excuse_pause(&mut self, now: Duration) {
        let late = now.saturating_sub(self.next_heartbeat);
        if late > self.options.heartbeat() {
            self.heard = self.heard.max((self.heard + late).min(now));
            self.next_heartbeat = now;
        }
    }

    fn is_suspect(&self, now: Duration) -> bool {
        self.coordinator.is_none() || self.is_suspected || now > self.heard + self.options.silence
    }

    fn advance(&mut self, done: u64) {
        // The edge may still report a step of a run that was fenced meanwhile.
        if self.run != Run::Idle
            && let Some(epoch) = self.epoch.as_ref().filter(|epoch| epoch.contains(self.id))
        {
            self.state = Some(State { epoch: epoch.number, done });
        }
    }

    fn halted(&mut self, now: Duration, actions: &mut Vec<MemberAction>) {
        self.run = Run::Idle;
        self.report(Occasion::News, now, actions);
    }

    fn abort(&mut self, actions: &mut Vec<MemberAction>) {
        if matches!(self.run, Run::Active | Run::Finishing) {
            self.run = Run::Aborting;
            actions.push(MemberAction::Abort);
        }
    }

    /// Ends the run if a member of the epoch is lost, since no step can be completed without it.
    fn lose(&mut self, peer: Id, now: Duration, actions: &mut Vec<MemberAction>) {
        if self.coordinator == Some(peer) {
            self.is_suspected = true;
        }
        let is_peer = self.epoch.as_ref().is_some_and(|epoch| epoch.contains(peer));
        // A fenced process knows an epoch that it is not in, and has no run that a loss could end.
        if is_peer && self.is_member() && !self.lost.contains(&peer) {
            self.lost.push(peer);
            self.abort(actions);
            self.report(Occasion::News, now, actions);
        }
    }

    fn leave(&mut self, now: Duration, actions: &mut Vec<MemberAction>) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Until(now + self.options.leave);
            self.report(Occasion::News, now, actions);
        }
        // An epoch that this process has accepted may have started, and makes no step without it.
        if self.run == Run::Idle && !self.is_member() && self.accepted.is_none() {
            self.left(actions);
        }
    }

    fn left(&mut self, actions: &mut Vec<MemberAction>) {
        self.leaving = Leaving::Left;
        if let Some(to) = self.coordinator {
            actions.push(MemberAction::Send { to, message: Message::Bye });
        }
        actions.push(MemberAction::Left);
    }

    /// Sends a report to its coordinator or, if that coordinator is lost, to the coordinator to which
    /// there is a connection.
    fn report(&mut self, occasion: Occasion, now: Duration, actions: &mut Vec<MemberAction>) {
        let coordinator = self.coordinator.filter(|_| !self.is_suspect(now));
        if let Some(to) = coordinator.or(self.contact) {
            let report = Report { occasion, ..self.news() };
            actions.push(MemberAction::Send { to, message: Message::Report(report) });
        }
    }

    fn report_to(&mut self, to: Id, known: Option<Box<Known>>, actions: &mut Vec<MemberAction>) {
        let report = Report { known, ..self.news() };
        actions.push(MemberAction::Send { to, message: Message::Report(report) });
    }

    fn news(&mut self) -> Report {
        self.heartbeat += 1;
        let number = |epoch: &Option<Epoch>| epoch.as_ref().map_or(0, |epoch| epoch.number);
        Report {
            heartbeat: self.heartbeat,
            occasion: Occasion::News,
            standing: self.standing(),
            promised: self.promised,
            epoch: number(&self.epoch),
            accepted: number(&self.accepted),
            state: self.state,
            fingerprint: self.fingerprint,
            lost: self.lost.clone(),
            leaving: self.leaving != Leaving::No,
            known: None,
        }
    }
}
