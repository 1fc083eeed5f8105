//! Presence of a process that is in every epoch without connecting to the other members.
//!
//! It is for servers, and for workers that exchange nothing with each other or do so in one epoch only.
//! They need to know which processes are in the job, but have nothing to stop when members change.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use thinwire_link::{Deadline, Link};
use thinwire_member::{Epoch, Id, Options};

use super::job_address::JobAddress;
use super::membership::{Membership, Participation};
use crate::error::Error;
use crate::meeting::Settings;

/// Presence of a process in a job: it takes part in every epoch, without connections to its other members and
/// without a state that it shares with them.
///
/// It continues while the coordinator does not answer. If it is dropped without [`Presence::leave`], it
/// looks to the others like a process that was killed.
pub struct Presence {
    membership: Membership,
    leave: Duration,
}

impl Presence {
    /// Joins a job with the role of the job address's id: sends the coordinator `spec`, which must be equal
    /// on all processes of that role, and from then on asks to be in its epochs.
    ///
    /// The coordinator's heartbeat timeout replaces the one in `options`.
    ///
    /// # Errors
    /// If the coordinator does not answer within the timeout of `settings`, has another token or another job
    /// spec, or has no servers although this process is one.
    pub fn join(
        job_address: &JobAddress,
        settings: &Settings,
        options: Options,
        spec: Vec<(String, String)>,
    ) -> Result<Presence, Error> {
        let membership =
            Membership::enter(Participation::Follows, job_address, settings, options, spec)?;
        Ok(Presence { membership, leave: options.leave })
    }

    /// Returns the id of this process.
    pub fn id(&self) -> Id {
        self.membership.id()
    }

    /// Returns the last epoch that has started with this process, if there was one.
    pub fn epoch(&self) -> Option<Epoch> {
        self.membership.shared().epoch()
    }

    /// Waits until an epoch after `seen` (0 for any) has started with this process; returns `None` when
    /// `timeout` has passed, or when the presence is over.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Option<Epoch> {
        self.membership.shared().wait_for_epoch_after(seen, Instant::now().checked_add(timeout))
    }

    /// Sets a callback. Another thread calls it when an epoch starts and when the presence is over, or at
    /// once if an epoch has started already. It must not block.
    pub fn on_change(&self, change: impl Fn() + Send + Sync + 'static) {
        self.membership.shared().on_change(Arc::new(change));
    }

    /// Connects to the other members of an epoch, for processes that do exchange something in it; returns
    /// `None` if the epoch ends before all have met. The connections outlive the epoch.
    ///
    /// # Errors
    /// If this process is not a member of the epoch, or another member cannot be reached.
    pub fn meet(&self, epoch: &Epoch) -> Result<Option<Link>, Error> {
        self.membership.meet(epoch)
    }

    /// Notes that this process has done `done` steps of the job. The next epoch starts with the largest such
    /// number of its members.
    pub fn applied(&self, done: u64) {
        // With fewer steps than the epoch began with, the job would seem to have lost some.
        let begun = self.membership.shared().epoch().map_or(0, |epoch| epoch.done);
        self.membership.applied(done.max(begun));
    }

    /// Notes that the connection to another member broke. If that member still runs, one of the two is left
    /// out of the epochs of the next seconds, so first try to connect again.
    pub fn lost(&self, id: Id) {
        self.membership.lose(id);
    }

    /// Sends figures that users see, as [`Membership::tell`] does. They replace the last ones.
    pub fn tell(&self, figures: Map<String, Value>) {
        self.membership.tell(figures);
    }

    /// Returns whether the job is over or this process has left it: no epoch follows.
    pub fn is_over(&self) -> bool {
        self.membership.shared().has_left()
    }

    /// Returns why the coordinator refuses this process, if it does: no epoch follows.
    pub fn refusal(&self) -> Option<String> {
        self.membership.shared().refusal()
    }

    /// Reports that all processes have done all their steps: the job is over.
    ///
    /// # Errors
    /// As [`Membership::complete`].
    pub fn complete(&self) -> Result<(), Error> {
        self.membership.complete()
    }

    /// Asks to leave. The others continue without this process, which need not wait for an answer.
    pub fn begin_leave(&self) {
        self.membership.leave();
    }

    /// Leaves. Returns when the coordinator has let this process go, or after [`Options::leave`].
    pub fn leave(&self) {
        self.membership.leave();
        if !self
            .membership
            .shared()
            .wait_for_departure(Instant::now() + self.leave + Deadline::Shutdown.duration())
        {
            self.membership.depart();
        }
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("id", &self.id()).finish_non_exhaustive()
    }
}
