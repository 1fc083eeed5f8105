//! Nodes of the simulated network, and their messages.

use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{Message, Pull, Push, Reason, View, Workers};
use thinwire_testkit::net::{self, Action, Event};

use crate::coordinator::Coordinator;
use crate::server::Server;
use crate::worker::Worker;

/// Number of the coordinator's node.
pub const COORDINATOR: usize = 0;
/// Interval of beats.
pub const BEAT: Duration = Duration::from_millis(4);
/// Silence after which a process is excluded from the next epoch.
pub const SILENCE: Duration = Duration::from_millis(15);

#[derive(Clone, Debug)]
pub enum Packet {
    /// A process reports that it is alive.
    Beat {
        id: Id,
        is_worker: bool,
    },
    /// A worker leaves.
    Leave {
        id: Id,
    },
    /// Answer of the coordinator to a beat.
    Told {
        view: View,
        workers: Workers,
        /// Whether no replica of the view is in the epoch.
        is_unavailable: bool,
    },
    /// A replica of a view that no server of the epoch is in has come back with its copy.
    Kept {
        id: Id,
        view: u64,
    },
    Ready {
        view: u64,
        learner: Id,
    },
    Between {
        from: Id,
        to: Id,
        message: Message,
        tables: Option<Vec<u8>>,
    },
    Push(Push),
    Pull(Pull),
    Acknowledge {
        client: Id,
        number: u64,
        step: u64,
    },
    Answer {
        client: Id,
        request: u64,
        step: u64,
    },
    Refuse {
        client: Id,
        reason: Reason,
    },
    /// Order to the coordinator: move the shard.
    Move,
    /// Order to a worker: end after the next push.
    Stop,
}

pub enum Node {
    Coordinator(Coordinator),
    Server(Box<Server>),
    Worker(Worker),
}

pub type Actions = Vec<Action<Packet>>;

impl net::Node for Node {
    type Message = Packet;

    fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        match self {
            Node::Coordinator(coordinator) => coordinator.on(event, now),
            Node::Server(server) => server.on(event, now),
            Node::Worker(worker) => worker.on(event, now),
        }
    }
}

/// Returns the id of a process, from its node and the number of previous starts of that node.
pub fn id(node: usize, life: u32) -> Id {
    Id(node as u64 + 64 * u64::from(life))
}

pub fn node(id: Id) -> usize {
    id.0 as usize % 64
}

pub fn send(to: Id, message: Packet) -> Action<Packet> {
    Action::Send { to: node(to), message }
}
