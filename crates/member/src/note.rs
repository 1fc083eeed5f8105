//! Events that are reported to people: in the log, in the report and by `--json`.

use serde::{Deserialize, Serialize};

use crate::Id;

/// Event in the life of a job, as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// An epoch has started.
    Started {
        /// Number of the epoch.
        number: u32,
        /// Members that were not in the previous epoch.
        joined: Vec<Id>,
        /// Members of the previous epoch that are not in this one, each with the reason.
        gone: Vec<(Id, Gone)>,
        /// Reason why the previous epoch was ended in the middle of a step, if it was.
        interruption: Option<Interruption>,
    },
    /// No source of the newest state is left; the job continues from an older state.
    Rewound {
        /// Number of the epoch that continues.
        number: u32,
        /// Last step that some member of the previous epoch has reported; that member may have applied
        /// more.
        from: u64,
        /// Last step of the state that is left; `None` if all load the last checkpoint.
        to: Option<u64>,
    },
    /// A coordinator that replaces another one has found the job's epoch, and the epoch continues.
    Adopted {
        /// Number of the epoch.
        number: u32,
    },
    /// No epoch can be formed.
    Waiting(Wait),
}

/// Reason why a member is not in the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The member wanted to leave.
    Left,
    /// The member's process has ended.
    Ended,
    /// The member's connection was closed, as that of a killed process is, and the member has not come back.
    Closed,
    /// The member was silent for too long over an open connection, or did not stop.
    Silent,
    /// The member and another one could not reach each other.
    Cut,
    /// The job was made smaller.
    Resized,
}

/// Reason why an epoch ends in the middle of a step. The member that it names may be in the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// A member has reported that it cannot reach another one.
    Lost {
        /// Member that has reported the loss.
        by: Id,
        /// Member that cannot be reached.
        of: Id,
    },
    /// The run of a member has ended by itself.
    Halted(Id),
    /// A member was silent for too long, its connection was closed, or its process has ended.
    Away(Id),
    /// A proposed epoch did not start in time.
    Unstarted {
        /// Number of the proposed epoch.
        number: u32,
    },
}

/// Reason why no epoch can be formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Fewer ranks than the job needs.
    Members {
        /// Number of ranks that could train.
        have: u32,
        /// Smallest number of ranks.
        min: u32,
    },
    /// Too few members of the last epoch are reachable to rule out that the others continue.
    Quorum {
        /// Members that are reachable.
        have: u32,
        /// Members that are needed.
        need: u32,
    },
    /// No reachable member has the newest state.
    StateSource {
        /// Last step of the newest state.
        done: u64,
    },
    /// A proposed epoch may have started, and too few of its members are reachable to rule that out.
    Proposed {
        /// Number of the proposed epoch.
        number: u32,
    },
    /// No member of the job has reported yet.
    Unknown,
}
