//! Nodes of the simulated network, and their messages.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{JobState, Message, Pull, Push, Request, ViewRequest};
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

/// Content of a shard's tables: the newest push of each worker so far.
pub type Applied = BTreeMap<Id, u64>;

#[derive(Clone, Debug)]
pub enum Packet {
    /// A process reports that it is alive.
    Beat {
        id: Id,
    },
    /// A worker leaves.
    Leave {
        id: Id,
    },
    /// Answer of the coordinator to a beat.
    Told(Rc<JobState>),
    Ask {
        from: Id,
        request: ViewRequest,
    },
    Between {
        from: Id,
        to: Id,
        shard: u32,
        message: Message,
        tables: Option<Applied>,
    },
    Push {
        shard: u32,
        push: Push,
    },
    Pull {
        shard: u32,
        pull: Pull,
    },
    /// A push is acknowledged, or a pull is answered.
    Done {
        shard: u32,
        client: Id,
        request: Request,
        step: u64,
    },
    /// Order to the coordinator: request a snapshot.
    Snapshot,
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

/// Returns the id of a process, from its node, the number of previous starts of that node, and its role.
pub fn id(node: usize, life: u32, is_server: bool) -> Id {
    let id = node as u64 + 64 * u64::from(life);
    Id(if is_server { Id::SERVER_BIT | id } else { id })
}

pub fn node(id: Id) -> usize {
    (id.0 & !Id::SERVER_BIT) as usize % 64
}

pub fn send(to: Id, message: Packet) -> Action<Packet> {
    Action::Send { to: node(to), message }
}

pub fn ask(from: Id, request: ViewRequest) -> Action<Packet> {
    Action::Send { to: COORDINATOR, message: Packet::Ask { from, request } }
}
