//! Server: a shard, its tables, and a beat.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{
    Action as Act, Event as ShardEvent, Format, Initial, Message, Options, Pace, Piece, Pull,
    Shard, TableOptions, Tables,
};
use thinwire_testkit::net::{Action, Event};
use thinwire_update::Optimizer;

use crate::ledger::{Ledger, ROWS};
use crate::node::{Actions, BEAT, COORDINATOR, Packet, send};

pub struct Server {
    pub id: Id,
    pub shard: Shard,
    pub tables: Tables,
    /// Number of writes applied to the tables.
    pub applied: u64,
    incoming: Option<Vec<u8>>,
    ledger: Rc<RefCell<Ledger>>,
    beat_at: Duration,
}

fn options() -> [TableOptions; 1] {
    let optimizer = Optimizer::parse("sgd:lr=1").expect("a rule");
    let (initial, values) = (Initial::Zeros, Format::F32);
    [TableOptions { width: 1, optimizer, initial, seed: 0, stream: 0, values }]
}

fn pieces() -> [Piece; 1] {
    [Piece { table: 0, rows: 0..ROWS as u64 }]
}

fn empty() -> Tables {
    Tables::new(&pieces(), &options())
}

fn read(bytes: &[u8]) -> Tables {
    let tables = Tables::read_from(bytes, &pieces(), &options(), None);
    tables.expect("no disk").expect("a server has written them")
}

impl Server {
    pub fn new(id: Id, options: Options, ledger: Rc<RefCell<Ledger>>, now: Duration) -> Server {
        let shard = Shard::new(id, options);
        Server { id, shard, tables: empty(), applied: 0, incoming: None, ledger, beat_at: now }
    }

    /// Returns the values of all rows.
    pub fn values(&self) -> Vec<f32> {
        let rows = vec![(0, (0..ROWS as u64).collect())];
        let pull = Pull { client: self.id, request: 0, after: 0, rows };
        let mut copy = read(&self.tables.to_bytes().expect("no disk"));
        copy.read(&pull).expect("no disk")
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        match event {
            Event::Message { message, .. } => self.hear(message, now, &mut actions),
            Event::Wake if now >= self.shard.deadline() => {
                self.tell(ShardEvent::Tick, now, &mut actions);
            }
            _ => {}
        }
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            let beat = Packet::Beat { id: self.id, is_worker: false };
            actions.push(Action::Send { to: COORDINATOR, message: beat });
        }
        actions.push(Action::Wake(self.beat_at.min(self.shard.deadline())));
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        match packet {
            Packet::Told { view, workers, is_unavailable } => {
                if is_unavailable && self.shard.keeps(&view) {
                    let message = Packet::Kept { id: self.id, view: view.number };
                    actions.push(Action::Send { to: COORDINATOR, message });
                }
                self.tell(ShardEvent::View(view), now, actions);
                self.tell(ShardEvent::Workers(workers), now, actions);
            }
            Packet::Between { from, to, message, tables } if to == self.id => {
                self.incoming = tables;
                self.tell(ShardEvent::Message { from, message }, now, actions);
            }
            Packet::Push(push) => {
                assert_eq!(self.tables.check_push(&push.parts), Ok(()));
                self.tell(ShardEvent::Push(push), now, actions);
            }
            Packet::Pull(pull) => self.tell(ShardEvent::Pull(pull), now, actions),
            _ => {}
        }
    }

    fn tell(&mut self, event: ShardEvent, now: Duration, actions: &mut Actions) {
        for action in self.shard.on(event, now) {
            self.perform(action, actions);
        }
    }

    fn perform(&mut self, action: Act, actions: &mut Actions) {
        let mut ledger = self.ledger.borrow_mut();
        match action {
            Act::Forward { to, message } => {
                let is_snapshot = matches!(message, Message::Snapshot { .. });
                let tables = is_snapshot.then(|| self.tables.to_bytes().expect("no disk"));
                if let Message::Snapshot { last, .. } = message {
                    assert_eq!(last, self.applied, "a snapshot of other tables");
                }
                actions.push(send(to, Packet::Between { from: self.id, to, message, tables }));
            }
            Act::Load => {
                let bytes = self.incoming.take().expect("a snapshot has tables");
                self.tables = read(&bytes);
                self.applied = self.shard.committed().expect("it has a copy");
            }
            Act::Drop => (self.tables, self.applied) = (empty(), 0),
            Act::Apply(write) => {
                self.applied += 1;
                self.tables.apply(&write).expect("no disk");
                ledger.applies(self.applied, &write);
            }
            Act::Acknowledge { client, number, pace: Pace { step, .. } } => {
                ledger.acknowledges(client, number);
                actions.push(send(client, Packet::Acknowledge { client, number, step }));
            }
            Act::Refuse { client, reason, .. } => {
                actions.push(send(client, Packet::Refuse { client, reason }));
            }
            Act::Answer { pull, version, pace: Pace { step, .. } } => {
                assert_eq!(version, self.applied, "an answer from other tables");
                ledger.answers(&pull, version, &self.tables.read(&pull).expect("no disk"));
                let (client, request) = (pull.client, pull.request);
                actions.push(send(client, Packet::Answer { client, request, step }));
            }
            Act::Ready { view, learner } => {
                let message = Packet::Ready { view, learner };
                actions.push(Action::Send { to: COORDINATOR, message });
            }
            // Snapshots of the job are tested in `tests/snapshots`.
            Act::Logged { .. } | Act::Capture { .. } | Act::Abandon { .. } => {}
            // A worker that waits needs no word of it.
            Act::Delay { .. } => {}
        }
    }
}
