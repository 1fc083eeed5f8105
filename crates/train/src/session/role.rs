//! Role of a rank in its job. The role determines the rank's signals to other ranks and the end of its
//! epoch.

use serde_json::{Map, Value};
use thinwire_job::elastic::{Membership, Presence, Wish};
use thinwire_member::{Epoch, Id};
use thinwire_report::training::Change;

/// Role of a rank in its job.
#[derive(Clone, Copy, Debug)]
pub enum Role<'a> {
    /// Rank of a job with a fixed number of ranks.
    Fixed,
    /// Member of an elastic job.
    Member(&'a Membership),
    /// Worker of a job with servers, in the epoch with this number. The workers exchange nothing with
    /// each other.
    Worker(&'a Presence, u32),
}

impl Role<'_> {
    /// Reports that a step was applied.
    pub fn applied(self, done: u64) {
        match self {
            Role::Fixed => {}
            Role::Member(membership) => membership.applied(done),
            Role::Worker(presence, _) => presence.applied(done),
        }
    }

    /// Sends figures to the coordinator, which displays them, if there is one.
    pub fn tell(self, figures: Map<String, Value>) {
        match self {
            Role::Fixed => {}
            Role::Member(membership) => membership.tell(figures),
            Role::Worker(presence, _) => presence.tell(figures),
        }
    }

    /// Prepares for the last checkpoint that all members write.
    pub fn closing(self) {
        if let Role::Member(membership) = self {
            membership.closing();
        }
    }

    /// Returns whether ranks may join and leave.
    pub fn is_elastic(self) -> bool {
        !matches!(self, Role::Fixed)
    }

    /// Returns this rank's [`Wish`] about the end of the epoch, in a step of `ranks` ranks. In an elastic
    /// job, a signal makes only this process leave.
    pub fn wish(self, signal: Option<i32>, ranks: usize) -> Wish {
        match self {
            Role::Member(membership) => {
                signal.iter().for_each(|_| membership.leave());
                membership.wish(ranks)
            }
            Role::Worker(presence, number) if signal.is_none() => {
                let is_over = presence.epoch().is_some_and(|epoch| epoch.number > number);
                if is_over { Wish::Change } else { Wish::Continue }
            }
            Role::Worker(..) | Role::Fixed => signal.map_or(Wish::Continue, Wish::Signal),
        }
    }
}

/// Returns the record of a new epoch's changes. Ranks that are not in `before`, the members of the last
/// epoch, count as joined. The number of state sources would not show this, since a member that lacks
/// the last step also takes over the state.
pub fn change(epoch: &Epoch, before: &[Id]) -> Change {
    let ranks = epoch.members.len();
    let joined = match before.is_empty() {
        true => ranks - epoch.state_sources as usize,
        false => epoch.members.iter().filter(|id| !before.contains(id)).count(),
    };
    Change { epoch: epoch.number, ranks, joined, ..Change::default() }
}
