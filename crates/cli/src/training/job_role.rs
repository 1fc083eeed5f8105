//! Place of a process in its job, and its role, on which its signals to other ranks and the end of its epoch depend.

use serde_json::{Map, Value};
use thinwire_checkpoint::FolderLock;
use thinwire_job::elastic::{JobAddress, Membership, Presence, Wish};
use thinwire_job::{Form, Host, Place, Source};
use thinwire_member::{Epoch, Id};
use thinwire_report::training::Change;

use super::interrupt::Interrupt;

/// One process of a training: its rank, and what all its runs or epochs share.
pub struct Seat<'a> {
    /// The rank.
    pub place: &'a Place,
    /// Signals.
    pub interrupt: &'a Interrupt,
    /// The folder of checkpoints.
    pub lock: &'a FolderLock,
}

/// Returns the place of a member of an elastic job, but for its rank and the number of ranks.
pub fn of_member(member: &JobAddress) -> Place {
    Place {
        coordinator: member.coordinator.clone(),
        host: Host::Launcher,
        source: Source::Thinwire,
        local_rank: thinwire_job::process("LOCAL_RANK").and_then(|it| it.parse().ok()).unwrap_or(0),
        local_world: thinwire_job::local_ranks(&thinwire_job::process),
        ..Place::alone(Form::Flags)
    }
}

/// Role of a rank in its job.
#[derive(Clone, Copy, Debug)]
pub enum JobRole<'a> {
    /// Rank of a job with a fixed number of ranks.
    Fixed,
    /// Member of an elastic job.
    Member(&'a Membership),
    /// Worker of a job with servers, in the epoch with this number; its ranks exchange nothing.
    Worker(&'a Presence, u32),
}

impl JobRole<'_> {
    /// Reports that a step was applied.
    pub fn applied(self, done: u64) {
        match self {
            JobRole::Fixed => {}
            JobRole::Member(membership) => membership.applied(done),
            JobRole::Worker(presence, _) => presence.applied(done),
        }
    }

    /// Sends figures for display to the coordinator, if there is one.
    pub fn tell(self, figures: Map<String, Value>) {
        match self {
            JobRole::Fixed => {}
            JobRole::Member(membership) => membership.tell(figures),
            JobRole::Worker(presence, _) => presence.tell(figures),
        }
    }

    /// Prepares for the last checkpoint that all members write.
    pub fn closing(self) {
        if let JobRole::Member(membership) = self {
            membership.closing();
        }
    }

    /// Returns whether ranks may join and leave.
    pub fn is_elastic(self) -> bool {
        !matches!(self, JobRole::Fixed)
    }

    /// Returns this rank's wish in a step of `ranks` ranks. In an elastic job, a signal makes only this
    /// process leave.
    pub fn wish(self, signal: Option<i32>, ranks: usize) -> Wish {
        match self {
            JobRole::Member(membership) => {
                signal.iter().for_each(|_| membership.leave());
                membership.wish(ranks)
            }
            JobRole::Worker(presence, number) if signal.is_none() => {
                let is_over = presence.epoch().is_some_and(|epoch| epoch.number > number);
                if is_over { Wish::Change } else { Wish::Continue }
            }
            JobRole::Worker(..) | JobRole::Fixed => signal.map_or(Wish::Continue, Wish::Signal),
        }
    }
}

/// Returns the report of a new epoch. Ranks that were not members of the last epoch, `before`, count as
/// joined. The number of state sources does not tell this: a member that lacks the last step also takes over the
/// state.
pub fn change(epoch: &Epoch, before: &[Id]) -> Change {
    let ranks = epoch.members.len();
    let joined = match before.is_empty() {
        true => ranks - epoch.state_sources as usize,
        false => epoch.members.iter().filter(|id| !before.contains(id)).count(),
    };
    Change { epoch: epoch.number, ranks, joined, ..Change::default() }
}
