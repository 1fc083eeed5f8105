//! Shard: state machine of one copy, with the role of its server in each view.
//!
//! The state machine orders writes, replicates them, and delays pushes and pulls for slower workers. It
//! stores no parameters: the caller has the tables, and performs the returned actions in order.

mod action;
mod followers;
mod lead;
mod write_barrier;

use std::collections::BTreeMap;
use std::time::Duration;

use thinwire_member::Id;

use crate::clocks::{Clocks, Staleness};
use crate::consistency::Consistency;
use crate::log::Copy;
use crate::message::Message;
use crate::view::{Part, View};
use crate::write::{Entry, Pull, Push, Workers};
pub use action::Action;
use lead::Lead;
pub use write_barrier::Order;

/// Settings of a shard, equal on all its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Rule by which pushes and pulls are delayed.
    pub consistency: Consistency,
    /// Largest number of uncommitted entries in the log. Further pushes wait, at most one per worker.
    pub uncommitted_max: u64,
    /// Largest number of pulls that wait; further ones are refused.
    pub pulls_max: usize,
    /// Bytes of row numbers in one client's waiting pulls beyond which its further pulls are refused.
    pub pull_bytes_max: usize,
    /// Time after which an unanswered message is repeated; a snapshot is repeated after ten times as long.
    pub beat: Duration,
    /// Longest time for which pushes are held for a snapshot of the job.
    pub hold: Duration,
}

impl Options {
    /// Returns the default settings for a consistency.
    pub fn new(consistency: Consistency) -> Options {
        let (beat, hold) = (Duration::from_millis(50), Duration::from_secs(10));
        let (uncommitted_max, pulls_max, pull_bytes_max) = (64, 4096, 4 << 20);
        Options { consistency, uncommitted_max, pulls_max, pull_bytes_max, beat, hold }
    }
}

/// Input of a [`Shard`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The coordinator has decided a view.
    View(View),
    /// There is a new list of workers, which every server of the shard gets.
    Workers(Workers),
    /// A worker pushes, and the tables have accepted its rows.
    Push(Push),
    /// A client pulls, and the tables have accepted its rows.
    Pull(Pull),
    /// Another server of the shard has sent a message.
    Message {
        /// Sender.
        from: Id,
        /// The message.
        message: Message,
    },
    /// The coordinator orders a step of a snapshot of the job.
    Snapshot {
        /// Number of the snapshot.
        snapshot: u64,
        /// Order to the primary.
        order: Order,
    },
    /// [`Shard::deadline`] has come.
    Tick,
}

/// State machine of one copy of a shard.
#[derive(Clone, Debug)]
pub struct Shard {
    id: Id,
    options: Options,
    view: View,
    copy: Option<Copy>,
    /// State of the primary; `None` on other servers, and on a former primary that knows of a later
    /// view.
    lead: Option<Lead>,
    /// Newest known list of workers.
    workers: Workers,
    staleness: BTreeMap<Id, Staleness>,
    /// Number of the last known snapshot, and position of the last order for it in the sequence of
    /// orders.
    ordered: Option<(u64, u8)>,
}

impl Shard {
    /// Creates the shard on a server that is in none of its views.
    pub fn new(id: Id, options: Options) -> Shard {
        Shard {
            id,
            options,
            view: View::default(),
            copy: None,
            lead: None,
            workers: Workers::default(),
            staleness: BTreeMap::new(),
            ordered: None,
        }
    }

    /// Returns the last known view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns whether this server has the copy of a replica in this view, and knows of no later one.
    pub fn keeps(&self, view: &View) -> bool {
        self.copy.is_some() && self.view == *view && view.replicas.contains(&self.id)
    }

    /// Returns the number of writes committed here, or `None` without a copy.
    pub fn committed(&self) -> Option<u64> {
        self.copy.as_ref().map(|copy| copy.log.committed())
    }

    /// Returns histograms of the staleness of this primary's answers, by worker.
    pub fn staleness(&self) -> &BTreeMap<Id, Staleness> {
        &self.staleness
    }

    /// Returns the time at which [`Event::Tick`] is due.
    pub fn deadline(&self) -> Duration {
        self.lead.as_ref().map_or(Duration::MAX, Lead::deadline)
    }

    /// Handles an event at time `now`. Returns the actions to perform, in order.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::View(view) => self.enter(view, now, &mut actions),
            Event::Workers(workers) => self.replace(workers, now, &mut actions),
            Event::Push(push) => self.push(push, now, &mut actions),
            Event::Pull(pull) => self.pull(pull, &mut actions),
            Event::Message { from, message } => self.hear(from, message, now, &mut actions),
            Event::Snapshot { snapshot, order } => self.obey(snapshot, order, now, &mut actions),
            Event::Tick => {
                self.give_up(now, &mut actions);
                self.tick(now, &mut actions);
            }
        }
        self.lead.iter_mut().for_each(|lead| lead.tell_delays(now, &mut actions));
        actions
    }

    fn enter(&mut self, view: View, now: Duration, actions: &mut Vec<Action>) {
        if view.number <= self.view.number {
            return;
        }
        let (pushes, pulls) = self.lead.take().map(Lead::into_waiting).unwrap_or_default();
        self.view = view;
        match self.view.part(self.id) {
            Part::None => {
                actions.extend(self.copy.take().map(|_| Action::Drop));
            }
            // An old copy is a start.
            Part::Learner => self.copy.iter_mut().for_each(Copy::doubt),
            // A replica without a copy belongs to a new shard, which starts empty.
            Part::Backup => self.copy.get_or_insert_default().doubt(),
            Part::Primary => {
                let copy = self.copy.get_or_insert_default();
                self.lead = Some(Lead::new(self.id, &self.view, copy, now));
                self.tick(now, actions);
                self.proceed(now, actions);
            }
        }
        // If this server is no longer the primary, these requests are refused with the new one's id.
        pushes.into_iter().for_each(|push| self.push(push, now, actions));
        pulls.into_iter().for_each(|pull| self.pull(pull, actions));
    }

    fn replace(&mut self, workers: Workers, now: Duration, actions: &mut Vec<Action>) {
        if workers.version > self.workers.version {
            self.staleness.retain(|id, _| workers.ids.contains(id));
            self.workers = workers;
            self.proceed(now, actions);
        }
    }

    fn hear(&mut self, from: Id, message: Message, now: Duration, actions: &mut Vec<Action>) {
        match message {
            Message::Forward { view, .. } | Message::Snapshot { view, .. }
                if view < self.view.number =>
            {
                let message = Message::Superseded { view: self.view.number };
                actions.push(Action::Forward { to: from, message });
            }
            // Of a view that this server does not know yet, the primary sends again what is lacking.
            Message::Forward { view, .. }
            | Message::Have { view, .. }
            | Message::Snapshot { view, .. }
                if view != self.view.number => {}
            Message::Forward { after, entries, committed, .. } => {
                self.follow(from, after, entries, committed, actions);
            }
            Message::Snapshot { last, clocks, .. } => self.load(from, last, clocks, actions),
            Message::Have { last, committed, .. } => {
                self.has(from, last, committed, now, actions);
            }
            Message::Superseded { view } => self.step_down(view, now, actions),
        }
    }

    /// Stops leading, because a replica has entered a later view, although the coordinator has not told
    /// this server yet.
    fn step_down(&mut self, view: u64, now: Duration, actions: &mut Vec<Action>) {
        if view > self.view.number
            && let Some(lead) = self.lead.take()
        {
            let (pushes, pulls) = lead.into_waiting();
            pushes.into_iter().for_each(|push| self.push(push, now, actions));
            pulls.into_iter().for_each(|pull| self.pull(pull, actions));
        }
    }
}

impl Shard {
    /// Handles entries after number `after` from the primary of this view.
    pub(super) fn follow(
        &mut self,
        from: Id,
        after: u64,
        entries: Vec<Entry>,
        committed: u64,
        actions: &mut Vec<Action>,
    ) {
        let kept = self.entries_max();
        if let Some(copy) = &mut self.copy {
            for (number, entry) in (after + 1..).zip(entries) {
                // Entries after a gap are sent again.
                if number == copy.matched + 1 {
                    copy.log.put(number, entry);
                    copy.matched = number;
                }
            }
            while copy.log.committed() < committed.min(copy.matched) {
                actions.push(Action::Apply(copy.commit()));
            }
            copy.log.trim(kept);
        }
        self.answer(from, actions);
    }

    /// Adopts the state after entry `last`.
    pub(super) fn load(&mut self, from: Id, last: u64, clocks: Clocks, actions: &mut Vec<Action>) {
        let is_event = self.copy.as_ref().is_none_or(|copy| copy.log.committed() < last);
        if is_event && matches!(self.view.part(self.id), Part::Backup | Part::Learner) {
            let copy = self.copy.get_or_insert_default();
            copy.log.advance(last);
            (copy.clocks, copy.matched) = (clocks, copy.matched.max(last));
            actions.push(Action::Load);
        }
        self.answer(from, actions);
    }

    fn answer(&self, to: Id, actions: &mut Vec<Action>) {
        let last = self.copy.as_ref().map(|copy| copy.matched);
        let committed = self.committed().unwrap_or(0);
        let message = Message::Have { view: self.view.number, last, committed };
        actions.push(Action::Forward { to, message });
    }

    /// Returns the number of committed entries that servers keep. A replica with all entries may lag by this
    /// number of commits, because each entry carries the commits that made room for it.
    pub(super) fn entries_max(&self) -> u64 {
        self.options.uncommitted_max + 1
    }
}
