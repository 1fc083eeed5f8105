//! What a shard tells its server to do.

use std::sync::Arc;

use thinwire_member::Id;

use crate::frontier::Frontier;
use crate::message::Message;
use crate::reason::{Reason, Request};
use crate::write::{Pull, Write};

/// Action of a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sends a message to a server; with [`Message::Snapshot`] go the tables as they are now.
    Forward {
        /// Receiver.
        to: Id,
        /// The message.
        message: Message,
    },
    /// Replaces the tables by those that came with the snapshot.
    Load,
    /// Drops the tables.
    Drop,
    /// Applies a write to the tables.
    Apply(Arc<Write>),
    /// Tells a worker that its push will survive.
    Acknowledge {
        /// The worker.
        client: Id,
        /// Number of the push.
        number: u64,
        /// Step of the slowest worker.
        step: u64,
    },
    /// Tells a client that it must ask again, there or elsewhere.
    Refuse {
        /// The client.
        client: Id,
        /// Request that is refused.
        request: Request,
        /// The reason.
        reason: Reason,
    },
    /// Answers a pull with the tables as they are now.
    Answer {
        /// The pull.
        pull: Pull,
        /// Number of writes that the answer contains.
        version: u64,
        /// Step of the slowest worker.
        step: u64,
    },
    /// Tells the coordinator that a learner has all that is acknowledged, and will have.
    Ready {
        /// Number of the view.
        view: u64,
        /// The learner.
        learner: Id,
    },
    /// Tells the coordinator which pushes are logged. No newer one is let in until there is a frontier.
    Logged {
        /// Number of the snapshot.
        snapshot: u64,
        /// Newest push of each worker.
        pushes: Frontier,
    },
    /// Gives the tables out as they are now, for a snapshot of the job.
    Capture {
        /// Number of the snapshot.
        snapshot: u64,
    },
    /// Tells the coordinator that the shard has waited long enough for a snapshot, and has no part in it.
    Abandon {
        /// Number of the snapshot.
        snapshot: u64,
        /// Push of the frontier that has not come; none if there was no frontier.
        missing: Option<(Id, u64)>,
    },
}
