//! Part of a primary in a snapshot of the job: it holds pushes back until its tables contain a frontier.
//!
//! Laws: the tables that are given out contain exactly the pushes up to the frontier; pushes that are held back go
//! on once the tables are given out, the snapshot is over, or [`super::Options::hold`] has passed.

use std::sync::Arc;
use std::time::Duration;

use thinwire_member::Id;

use crate::clocks::Clocks;
use crate::frontier::Frontier;
use crate::shard::{Action, Shard};
use crate::write::Push;

/// Order to the primary of a shard for a snapshot of the job. Later ones of a snapshot are greater.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Lets no push in that is newer than those that are logged, and says which they are.
    Hold,
    /// Lets exactly the pushes up to a frontier in, and gives the tables out.
    Take(Arc<Frontier>),
    /// The snapshot is over, or needs nothing more of the shards.
    Release,
}

impl Order {
    pub(super) fn rank(&self) -> u8 {
        match self {
            Order::Hold => 0,
            Order::Take(_) => 1,
            Order::Release => 2,
        }
    }
}

/// Snapshot for which a primary holds pushes back.
#[derive(Clone, Debug)]
pub struct Hold {
    number: u64,
    stage: Stage,
    /// Time at which it is given up.
    until: Duration,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The list of workers is about to be logged.
    Begun,
    /// Nothing newer goes in.
    Settled(Frontier),
    /// What is up to the frontier goes in.
    Agreed(Arc<Frontier>),
}

impl Hold {
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

    /// Returns whether pushes are let in that another shard has let in: they keep the bound there.
    pub fn is_agreed(&self) -> bool {
        matches!(self.stage, Stage::Agreed(_))
    }

    /// Returns whether a push of this worker is still to come that belongs to the snapshot, or may do so.
    pub fn awaits(&self, id: Id, logged: &Clocks) -> bool {
        match &self.stage {
            Stage::Begun | Stage::Settled(_) => true,
            Stage::Agreed(frontier) => frontier.pushes.get(&id).copied() > logged.pushed(id),
        }
    }

    /// Returns whether it goes on under another list of workers.
    pub fn is_begun(&self) -> bool {
        matches!(self.stage, Stage::Begun)
    }

    /// Lets nothing newer in than what is logged from now on.
    pub fn settle(&mut self, logged: &Clocks, actions: &mut Vec<Action>) {
        if self.is_begun() {
            let pushes = logged.frontier();
            actions.push(Action::Logged { snapshot: self.number, pushes: pushes.clone() });
            self.stage = Stage::Settled(pushes);
        }
    }

    /// Returns the first push that is missing in the log.
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
    /// Takes an order of the coordinator; one that is not newer than the last is void.
    pub(super) fn obey(
        &mut self,
        (snapshot, order): (u64, Order),
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let rank = (snapshot, order.rank());
        if self.ordered.is_some_and(|last| rank <= last) {
            return;
        }
        self.ordered = Some(rank);
        let until = now + self.options.hold;
        let Some(lead) = &mut self.lead else { return };
        match order {
            Order::Hold => {
                lead.hold = Some(Hold { number: snapshot, stage: Stage::Begun, until });
            }
            Order::Take(frontier) => {
                // Whoever has not said what is logged has no part in the frontier.
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

    /// Gives the tables out, if they contain what the snapshot is to contain. Returns whether it was so: what was
    /// held back may go on.
    pub(super) fn capture(&mut self, actions: &mut Vec<Action>) -> bool {
        let (Some(lead), Some(copy)) = (&mut self.lead, &self.copy) else { return false };
        let is_applied = copy.log.committed() == copy.log.last();
        let logged = &lead.logged;
        let due = lead.hold.take_if(|hold| is_applied && hold.is_reached(logged));
        let is_due = due.is_some();
        actions.extend(due.map(|hold| Action::Capture { snapshot: hold.number }));
        is_due
    }

    /// Gives up a snapshot that takes too long.
    pub(super) fn give_up(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        if let Some(hold) = lead.hold.take_if(|hold| hold.until <= now) {
            let missing = hold.missing(&lead.logged);
            actions.push(Action::Abandon { snapshot: hold.number, missing });
            self.proceed(now, actions);
        }
    }
}
