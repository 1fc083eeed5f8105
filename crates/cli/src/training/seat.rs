//! One process of a training.

use thinwire_checkpoint::FolderLock;
use thinwire_job::{Form, Host, Place, Source, elastic};

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
pub fn of_member(member: &elastic::JobAddress) -> Place {
    Place {
        coordinator: member.coordinator.clone(),
        host: Host::Launcher,
        source: Source::Thinwire,
        local_rank: thinwire_job::process("LOCAL_RANK").and_then(|it| it.parse().ok()).unwrap_or(0),
        local_world: thinwire_job::local_ranks(&thinwire_job::process),
        ..Place::alone(Form::Flags)
    }
}
