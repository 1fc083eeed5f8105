//! Actions that a shard asks of its server.

use std::sync::Arc;

use thinwire_member::Id;

use crate::clocks::Pace;
use crate::frontier::Frontier;
use crate::message::Message;
use crate::reason::{Reason, Request, Slowest};
use crate::write::{Pull, Write};

/// Action of a shard, to be performed by its server.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sends a message to a server. A [`Message::Snapshot`] carries the tables as they are now.
    Forward {
        /// Receiver.
        to: Id,
        /// The message.
        message: Message,
    },
    /// Replaces the tables by the tables that came with the snapshot message.
    Load,
    /// Drops the tables.
    Drop,
    /// Applies a write to the tables.
    Apply(Arc<Write>),
    /// Tells a worker that its push is committed.
    Acknowledge {
        /// The worker.
        client: Id,
        /// Number of the push.
        number: u64,
        /// Progress of the workers.
        pace: Pace,
    },
    /// Tells a worker why its request waits; the request remains in the queue.
    Delay {
        /// The worker.
        client: Id,
        /// Waiting request.
        request: Request,
        /// Worker for which the request waits, and the step that this worker has reached.
        slowest: Slowest,
    },
    /// Tells a client to repeat a request, to this server or another.
    Refuse {
        /// The client.
        client: Id,
        /// Refused request.
        request: Request,
        /// Reason of the refusal.
        reason: Reason,
    },
    /// Answers a pull from the tables as they are now.
    Answer {
        /// The pull.
        pull: Pull,
        /// Number of writes that the answer contains.
        version: u64,
        /// Progress of the workers.
        pace: Pace,
    },
    /// Tells the coordinator that a learner has all acknowledged writes and will get all later ones.
    Ready {
        /// Number of the view.
        view: u64,
        /// The learner.
        learner: Id,
    },
    /// Tells the coordinator the newest pushes in the log. The shard admits no newer ones until it gets a
    /// frontier.
    Logged {
        /// Number of the snapshot.
        snapshot: u64,
        /// Newest push of each worker.
        pushes: Frontier,
    },
    /// Copies the current tables, for a snapshot of the job.
    Capture {
        /// Number of the snapshot.
        snapshot: u64,
    },
    /// Tells the coordinator that the shard abandons a snapshot after holding pushes for too long.
    Abandon {
        /// Number of the snapshot.
        snapshot: u64,
        /// Push of the frontier that has not arrived; `None` if the shard got no frontier.
        missing: Option<(Id, u64)>,
    },
}
