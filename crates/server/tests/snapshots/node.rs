//! Nodes of the simulated network, and what they say to each other.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{JobState, Message, Pull, Push, Request, ViewRequest};
use thinwire_testkit::net::{self, Action, Event};

use crate::coordinator::Coordinator;
use crate::server::Server;
use crate::worker::Worker;

/// Node of the coordinator.
pub const COORDINATOR: usize = 0;
/// Time between two beats.
pub const BEAT: Duration = Duration::from_millis(4);
/// Time after which a silent process is excluded.
pub const SILENCE: Duration = Duration::from_millis(15);

/// State of a shard's tables: the newest push of each worker there ever was.
pub type Applied = BTreeMap<Id, u64>;

#[derive(Clone, Debug)]
pub enum Packet {
    /// A process lives.
    Beat {
        id: Id,
    },
    /// A worker ends.
    Leave {
        id: Id,
    },
    /// The coordinator's answer to a beat.
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
    /// Order to the coordinator: somebody asks for a snapshot.
    Snapshot,
    /// Order to a worker: no push after the next one.
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

/// Name of a process: its node, and how often that was started before.
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
