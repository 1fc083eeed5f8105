//! The roster of a coordinator, and how it begins.
//!
//! A coordinator that may be a replacement, and has no state, listens for a while: if a process of a
//! running job reports, it adopts that job, else it founds one.

use std::time::Duration;

use thinwire_member::{Id, Options, Roster, RosterAction, RosterEvent};

/// Roster, or a coordinator that does not know yet whether there is a job.
pub enum CoordinatorState {
    /// The coordinator of a job.
    Decided(Box<Roster>),
    /// A coordinator that listens.
    Listening {
        /// Id of the coordinator.
        id: Id,
        /// Settings of the job.
        options: Options,
        /// Time of the first arrival.
        since: Option<Duration>,
        /// Next time to look.
        next: Duration,
    },
}

impl CoordinatorState {
    /// Returns a coordinator that finds out whether a job is under way.
    pub fn listen(id: Id, options: Options) -> CoordinatorState {
        CoordinatorState::Listening { id, options, since: None, next: Duration::ZERO }
    }

    /// Returns the id of the coordinator.
    pub fn id(&self) -> Id {
        match self {
            CoordinatorState::Decided(roster) => roster.id(),
            CoordinatorState::Listening { id, .. } => *id,
        }
    }

    /// Returns the settings of the job.
    pub fn options(&self) -> Options {
        match self {
            CoordinatorState::Decided(roster) => roster.options(),
            CoordinatorState::Listening { options, .. } => *options,
        }
    }

    /// Returns the roster, once there is one.
    pub fn roster(&self) -> Option<&Roster> {
        match self {
            CoordinatorState::Decided(roster) => Some(roster),
            CoordinatorState::Listening { .. } => None,
        }
    }

    /// Returns the number of ranks that the job should have.
    pub fn target(&self) -> u32 {
        self.roster().map_or(self.options().max, Roster::target)
    }

    /// Notes that a process has joined.
    pub fn arrived(&mut self, now: Duration) {
        if let CoordinatorState::Listening { since, .. } = self {
            since.get_or_insert(now);
        }
    }

    /// Returns when a tick is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self {
            CoordinatorState::Decided(roster) => Some(roster.deadline()),
            CoordinatorState::Listening { since, next, .. } => since.map(|_| *next),
        }
    }

    /// Handles an event at time `now`, and returns the actions that follow from it.
    pub fn on(&mut self, event: RosterEvent, now: Duration) -> Vec<RosterAction> {
        self.begin(&event, now);
        match self {
            CoordinatorState::Decided(roster) => roster.on(event, now),
            CoordinatorState::Listening { .. } => Vec::new(),
        }
    }

    fn begin(&mut self, event: &RosterEvent, now: Duration) {
        let CoordinatorState::Listening { id, options, since, next } = self else { return };
        let knows_epochs = match event {
            RosterEvent::Report { report, .. } => report.epoch > 0 || report.accepted > 0,
            _ => false,
        };
        let (id, options) = (*id, *options);
        if knows_epochs {
            *self = CoordinatorState::Decided(Box::new(Roster::adopt(id, options, now)));
            return;
        }
        // Members of a running job come back within this time.
        if since.is_some_and(|since| now >= since + options.silence) {
            *self = CoordinatorState::Decided(Box::new(Roster::found(id, options)));
        } else {
            *next = now + options.heartbeat();
        }
    }
}
