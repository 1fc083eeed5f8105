//! Followers: the backups and learners as the primary knows them, and the messages that it sends to
//! each.

use std::time::Duration;

use thinwire_member::Id;

use crate::log::Copy;
use crate::message::Message;
use crate::shard::action::Action;
use crate::view::View;

/// Largest number of entries in one message.
const ENTRIES_MAX: usize = 64;
/// Number of beats after which a snapshot is sent again.
const SNAPSHOT_BEATS: u32 = 10;

/// Primary that sends, and the current time.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    pub view: u64,
    pub copy: &'a Copy,
    pub beat: Duration,
    pub now: Duration,
}

/// Backup or learner, as the primary knows it.
#[derive(Clone, Debug)]
pub struct Follower {
    pub id: Id,
    /// Whether commits wait for the follower.
    pub is_counted: bool,
    pub is_learner: bool,
    /// Last entry that the follower is known to have; `None` until its first answer in this view.
    pub matched: Option<u64>,
    /// Last entry that was sent to the follower.
    pub sent: u64,
    /// Last entry that the follower is known to have committed.
    pub committed: u64,
    /// Value of `matched` at the last tick.
    pub matched_before: Option<u64>,
    /// Earliest time at which the state may be sent to the follower again.
    pub snapshot_at: Duration,
}

impl Follower {
    /// Returns the followers of a view: all of its servers except the primary.
    pub fn all(view: &View, primary: Id, now: Duration) -> Vec<Follower> {
        let follower = |id: &Id, is_learner: bool| Follower {
            id: *id,
            is_counted: !is_learner,
            is_learner,
            matched: None,
            sent: 0,
            committed: 0,
            matched_before: None,
            snapshot_at: now,
        };
        let backups = view.replicas.iter().filter(|id| **id != primary);
        let learners = view.learners.iter().map(|id| follower(id, true));
        backups.map(|id| follower(id, false)).chain(learners).collect()
    }

    /// Handles an answer.
    pub fn absorb(&mut self, last: u64, committed: u64) {
        // The first answer in a view says where to start.
        self.sent = if self.matched.is_none() { last } else { self.sent.max(last) };
        self.matched = self.matched.max(Some(last));
        self.committed = self.committed.max(committed);
    }

    /// Returns whether the follower lacks an entry or a commit, as far as is known.
    pub fn is_behind(&self, copy: &Copy) -> bool {
        self.matched != Some(copy.log.last()) || self.committed != copy.log.committed()
    }

    /// Sends everything that the follower lacks again, unless the follower has made progress since the
    /// last call.
    pub fn repeat(&mut self, sender: &Sender<'_>, actions: &mut Vec<Action>) {
        let is_stuck = self.matched == self.matched_before;
        self.matched_before = self.matched;
        if is_stuck && self.is_behind(sender.copy) {
            self.sent = self.matched.unwrap_or(sender.copy.log.last());
            self.send(sender, actions);
        }
    }

    /// Sends the entry that was just appended, if all earlier ones were sent.
    pub fn stream(&mut self, sender: &Sender<'_>, actions: &mut Vec<Action>) {
        if self.matched.is_some() && self.sent + 1 == sender.copy.log.last() {
            self.send(sender, actions);
        }
    }

    /// Sends the next entries and the number of commits, or the state if the log no longer has those entries.
    pub fn send(&mut self, sender: &Sender<'_>, actions: &mut Vec<Action>) {
        let Sender { view, copy, .. } = *sender;
        let Some(entries) = copy.log.after(self.sent, ENTRIES_MAX) else {
            return self.snapshot(sender, actions);
        };
        let (after, committed) = (self.sent, copy.log.committed());
        self.sent += entries.len() as u64;
        let message = Message::Forward { view, after, entries, committed };
        actions.push(Action::Forward { to: self.id, message });
    }

    /// Sends the state, unless it was sent recently.
    pub fn snapshot(&mut self, sender: &Sender<'_>, actions: &mut Vec<Action>) {
        let Sender { view, copy, beat, now } = *sender;
        if now >= self.snapshot_at {
            let (last, clocks) = (copy.log.committed(), copy.clocks.clone());
            let message = Message::Snapshot { view, last, clocks };
            actions.push(Action::Forward { to: self.id, message });
            self.snapshot_at = now + SNAPSHOT_BEATS * beat;
        }
    }
}
