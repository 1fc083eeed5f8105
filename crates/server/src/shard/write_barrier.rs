//! A primary during a snapshot of the job: it holds pushes back until its tables contain exactly the
//! pushes of a frontier.
//!
//! Laws: captured tables contain exactly the pushes up to the frontier; held pushes proceed once the tables
//! are captured, the snapshot has ended, or [`super::Options::hold`] has passed.

use std::sync::Arc;
use std::time::Duration;

use thinwire_member::Id;

use crate::clocks::Clocks;
use crate::frontier::Frontier;
use crate::shard::Action;
use crate::write::Push;

/// Order to the primary of a shard for a snapshot of the job. Later orders compare greater.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Admit no pushes that are newer than those in the log, and report the newest pushes in the log.
    WriteBarrier,
    /// Admit exactly the pushes up to a frontier, and capture the tables.
    Take(Arc<Frontier>),
    /// Admit all pushes: the snapshot has ended or needs nothing more from shards.
    Release,
}

impl Order {
    pub(super) fn rank(&self) -> u8 {
        match self {
            Order::WriteBarrier => 0,
            Order::Take(_) => 1,
            Order::Release => 2,
        }
    }
}

/// Snapshot for which a primary holds pushes.
#[derive(Clone, Debug)]
pub struct WriteBarrier {
    /// Number of the snapshot.
    pub number: u64,
    stage: Stage,
    /// Time at which the snapshot is abandoned.
    pub deadline: Duration,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The list of workers is still to be logged.
    Begun,
    /// The newest pushes in the log, this frontier, were reported; no newer ones are admitted.
    Settled(Frontier),
    /// Pushes up to this frontier of all shards are admitted.
    Agreed(Arc<Frontier>),
}

impl WriteBarrier {
    /// Creates the barrier of a snapshot, which is abandoned at `deadline`.
    pub fn new(number: u64, deadline: Duration) -> WriteBarrier {
        WriteBarrier { number, stage: Stage::Begun, deadline }
    }

    /// Returns whether a push may be logged.
    pub fn lets_in(&self, push: &Push) -> bool {
        match &self.stage {
            Stage::Begun => true,
            Stage::Settled(frontier) => frontier.contains(push.client, push.number),
            Stage::Agreed(frontier) => frontier.contains(push.client, push.number),
        }
    }

    /// Returns whether the frontier is known. Its pushes are admitted however far ahead they are, since
    /// another shard has logged them within the bound.
    pub fn is_agreed(&self) -> bool {
        matches!(self.stage, Stage::Agreed(_))
    }

    /// Returns whether this worker has a push that belongs, or may belong, to the snapshot and is not
    /// logged yet.
    pub fn awaits(&self, id: Id, logged: &Clocks) -> bool {
        match &self.stage {
            Stage::Begun | Stage::Settled(_) => true,
            Stage::Agreed(frontier) => frontier.pushes.get(&id).copied() > logged.pushed(id),
        }
    }

    /// Returns whether the hold survives a change of the list of workers.
    pub fn is_begun(&self) -> bool {
        matches!(self.stage, Stage::Begun)
    }

    /// From now on, admits no push that is newer than those in the log. Reports the log's newest pushes.
    pub fn settle(&mut self, logged: &Clocks, actions: &mut Vec<Action>) {
        if self.is_begun() {
            let pushes = logged.frontier();
            actions.push(Action::Logged { snapshot: self.number, pushes: pushes.clone() });
            self.stage = Stage::Settled(pushes);
        }
    }

    /// Admits the pushes up to the frontier of all shards, if `number` is this snapshot's. A shard that has
    /// not reported its log is not part of the frontier.
    pub fn agree(&mut self, number: u64, frontier: Arc<Frontier>) {
        if self.number == number && !self.is_begun() {
            self.stage = Stage::Agreed(frontier);
        }
    }

    /// Returns the first push of the frontier that the log lacks.
    pub fn missing(&self, logged: &Clocks) -> Option<(Id, u64)> {
        let Stage::Agreed(frontier) = &self.stage else { return None };
        let lacks = |(id, number): &(&Id, &u64)| logged.pushed(**id) < Some(**number);
        frontier.pushes.iter().find(lacks).map(|(id, number)| (*id, *number))
    }

    /// Returns whether the log has all pushes of the frontier.
    pub fn is_reached(&self, logged: &Clocks) -> bool {
        self.is_agreed() && self.missing(logged).is_none()
    }
}
