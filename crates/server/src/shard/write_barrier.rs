//! Primary in a snapshot of the job: it holds pushes until its tables contain exactly a frontier.
//!
//! Laws: captured tables contain exactly the pushes up to the frontier; held pushes proceed once the tables
//! are captured, the snapshot has ended, or [`super::Options::hold`] has passed.

use std::sync::Arc;
use std::time::Duration;

use thinwire_member::Id;

use crate::clocks::Clocks;
use crate::frontier::Frontier;
use crate::shard::{Action, Shard};
use crate::write::Push;

/// Order to the primary of a shard for a snapshot of the job. Later orders compare greater.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Admit no pushes newer than those in the log, and report which they are.
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
    number: u64,
    stage: Stage,
    /// Time at which the snapshot is abandoned.
    until: Duration,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The list of workers is still to be logged.
    Begun,
    /// Pushes up to this frontier, those in the log, were reported; no newer ones are admitted.
    Settled(Frontier),
    /// Pushes up to this frontier of all shards are admitted.
    Agreed(Arc<Frontier>),
}

impl WriteBarrier {
    pub fn deadline(&self) -> Duration {
        self.until
    }

    /// Returns whether a push may be logged.
    pub fn lets_in(&self, push: &Push) -> bool {
        match &self.stage {
            Stage::Begun => true,
            Stage::Settled(frontier) => frontier.contains(push.client, push.number),
            Stage::Agreed(frontier) => frontier.contains(push.client, push.number),
        }
    }

    /// Returns whether the frontier is known. Its pushes are admitted without regard to their lead: another
    /// shard has logged them within the bound.
    pub fn is_agreed(&self) -> bool {
        matches!(self.stage, Stage::Agreed(_))
    }

    /// Returns whether a push of this worker is missing that belongs, or may belong, to the snapshot.
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

    /// Admits nothing newer than the log from now on, and reports the log's newest pushes.
    pub fn settle(&mut self, logged: &Clocks, actions: &mut Vec<Action>) {
        if self.is_begun() {
            let pushes = logged.frontier();
            actions.push(Action::Logged { snapshot: self.number, pushes: pushes.clone() });
            self.stage = Stage::Settled(pushes);
        }
    }

    /// Returns the first push of the frontier that the log lacks.
    fn missing(&self, logged: &Clocks) -> Option<(Id, u64)> {
        let Stage::Agreed(frontier) = &self.stage else { return None };
        let lacks = |(id, number): &(&Id, &u64)| logged.pushed(**id) < Some(**number);
        frontier.pushes.iter().find(lacks).map(|(id, number)| (*id, *number))
    }

    fn is_reached(&self, logged: &Clocks) -> bool {
        self.is_agreed() && self.missing(logged).is_none()
    }
}

impl Shard {
    /// Handles an order of the coordinator, unless it is no newer than the last one.
    pub(super) fn obey(
        &mut self,
        snapshot: u64,
        order: Order,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let rank = (snapshot, order.rank());
        // Every new state of the job brings the order of its snapshot again.
        if self.ordered.is_some_and(|last| rank <= last) {
            return;
        }
        self.ordered = Some(rank);
        let until = now + self.options.hold;
        // A backup that becomes primary missed nothing: a change of the servers has ended the snapshot (ADR 24).
        let Some(lead) = &mut self.lead else { return };
        match order {
            Order::WriteBarrier => {
                lead.hold = Some(WriteBarrier { number: snapshot, stage: Stage::Begun, until });
            }
            Order::Take(frontier) => {
                // A shard that has not reported its log is not part of the frontier.
                let hold = lead.hold.iter_mut().find(|hold| hold.number == snapshot);
                let settled = hold.filter(|hold| !hold.is_begun());
                settled
                    .into_iter()
                    .for_each(|hold| hold.stage = Stage::Agreed(Arc::clone(&frontier)));
            }
            Order::Release => lead.hold = None,
        }
        self.proceed(now, actions);
    }

    /// Captures the tables if they contain exactly the frontier, and ends the hold. Returns whether they did.
    pub(super) fn capture(&mut self, actions: &mut Vec<Action>) -> bool {
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return false };
        let is_applied = copy.log.committed() == copy.log.last();
        let logged = &lead.logged;
        let due = lead.hold.take_if(|hold| is_applied && hold.is_reached(logged));
        let is_due = due.is_some();
        actions.extend(due.map(|hold| Action::Capture { snapshot: hold.number }));
        is_due
    }

    /// Abandons a snapshot whose time is over.
    pub(super) fn give_up(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        if let Some(hold) = lead.hold.take_if(|hold| hold.until <= now) {
            let missing = hold.missing(&lead.logged);
            actions.push(Action::Abandon { snapshot: hold.number, missing });
            self.proceed(now, actions);
        }
    }
}
