//! Worker written by hand: one request at a time, repeated until it is answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thinwire_job::Settings;
use thinwire_job::elastic::{JobAddress, Presence, ViewsConnection};
use thinwire_link::Token;
use thinwire_link::endpoint::Connection;
use thinwire_member::Id;
use thinwire_server::wire::{Fragments, FromClient, FromServer, frames};
use thinwire_server::{Definition, JobState, Part, Pull, Push, ViewRequest};

use crate::{LONG, TOKEN, options};

/// Time after which a request is repeated.
const AGAIN: Duration = Duration::from_secs(1);

pub struct Worker {
    id: Id,
    views: ViewsConnection,
    state: JobState,
    connections: BTreeMap<Id, Connection>,
    /// Number of the last push to each shard.
    pushed: BTreeMap<u32, u64>,
    pulls: u64,
    _presence: Option<Presence>,
}

impl Worker {
    /// Joins a job as a worker, with these tables.
    pub fn join(address: &str, definition: Definition) -> Worker {
        let job_address = JobAddress::new(address, TOKEN).unwrap();
        let presence =
            Presence::join(&job_address, &Settings::default(), options(8), Vec::new()).unwrap();
        let mut worker = Worker::new(address, job_address.id);
        worker.views.send(&ViewRequest::Define(definition).to_bytes()).unwrap();
        worker._presence = Some(presence);
        let id = worker.id;
        worker.wait(|state| state.workers.ids.contains(&id));
        worker
    }

    /// Connects to a job as a reader.
    pub fn reader(address: &str) -> Worker {
        Worker::new(address, Id(0))
    }

    fn new(address: &str, id: Id) -> Worker {
        let mut views = ViewsConnection::connect(address, TOKEN, id, LONG).unwrap();
        views.send(&[]).unwrap();
        Worker {
            id,
            views,
            state: JobState::default(),
            connections: BTreeMap::new(),
            pushed: BTreeMap::new(),
            pulls: 0,
            _presence: None,
        }
    }

    /// Waits for a state for which `is_right` holds.
    pub fn wait(&mut self, mut is_right: impl FnMut(&JobState) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_right(&self.state) {
            assert!(Instant::now() < deadline, "{:?}", self.state);
            self.look(AGAIN);
        }
    }

    /// Returns the newest state received.
    pub fn state(&mut self) -> &JobState {
        self.look(Duration::ZERO);
        &self.state
    }

    fn look(&mut self, timeout: Duration) {
        let mut wait = timeout;
        while let Some(state) = self.views.receive(wait).unwrap() {
            self.state = JobState::parse(&state.unwrap()).unwrap();
            wait = Duration::ZERO;
        }
    }

    /// Pushes minus one for every value of a shard.
    pub fn push(&mut self, shard: u32) {
        let number = self.pushed.get(&shard).copied().unwrap_or(0) + 1;
        let part = |(table, rows, width): (u32, Vec<u64>, usize)| {
            let gradient = vec![-1.0; rows.len() * width].into();
            Part { table, rows, gradient }
        };
        let parts = self.rows(shard).into_iter().map(part).collect();
        let push = Push { client: self.id, number, step: number, parts };
        let message = FromClient::Push { shard, push };
        self.ask(shard, &message, |reply| {
            let is_mine = |found| found == (shard, number);
            matches!(reply, FromServer::Acknowledge { shard, number, .. } if is_mine((*shard, *number)))
                .then_some(())
        });
        self.pushed.insert(shard, number);
    }

    /// Returns all values of a shard.
    pub fn pull(&mut self, shard: u32) -> Vec<f32> {
        self.pulls += 1;
        let name = self.pulls;
        let rows = self.rows(shard).into_iter().map(|(table, rows, _)| (table, rows)).collect();
        let after = self.pushed.get(&shard).copied().unwrap_or(0);
        let pull = Pull { client: self.id, request: name, after, rows };
        let message = FromClient::Pull { shard, pull };
        self.ask(shard, &message, |reply| match reply {
            FromServer::Answer { request, values, .. } if *request == name => Some(floats(values)),
            _ => None,
        })
    }

    /// Sends requests to the primary of a shard without reading answers, until it accepts no more.
    pub fn flood(&mut self, shard: u32) -> Connection {
        let primary = self.state.views[shard as usize].primary().unwrap();
        let mut connection = self.connect(primary).unwrap();
        let (table, rows, _) = self.rows(shard).remove(0);
        for request in 1..1_000_000 {
            let rows = vec![(table, rows.clone()); 1000];
            let pull = Pull { client: self.id, request, after: 0, rows };
            connection.send(&FromClient::Pull { shard, pull }.to_bytes()).unwrap();
            if connection.unsent_bytes() > 256 << 10 {
                return connection;
            }
        }
        panic!("the server takes everything");
    }

    /// Returns table, rows and width of each piece of a shard.
    fn rows(&self, shard: u32) -> Vec<(u32, Vec<u64>, usize)> {
        let layout = self.state.definition.as_ref().unwrap().layout().unwrap();
        let pieces = layout.shards[shard as usize].iter();
        let piece = |piece: &thinwire_server::Piece| {
            let width = layout.tables[piece.table as usize].width;
            (piece.table, piece.rows.clone().collect(), width)
        };
        pieces.map(piece).collect()
    }

    /// Sends a request to the current primary of a shard until it is answered.
    fn ask<T>(
        &mut self,
        shard: u32,
        message: &FromClient,
        mut answer: impl FnMut(&FromServer) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            self.look(Duration::ZERO);
            let primary = self.state.views[shard as usize].primary().unwrap();
            match self.try_ask(primary, message, &mut answer) {
                Some(answer) => return answer,
                None => self.look(Duration::from_millis(20)),
            }
        }
        panic!("no answer to {message:?} with {:?}", self.state);
    }

    fn try_ask<T>(
        &mut self,
        primary: Id,
        message: &FromClient,
        answer: &mut impl FnMut(&FromServer) -> Option<T>,
    ) -> Option<T> {
        let mut connection = match self.connections.remove(&primary) {
            Some(connection) => connection,
            None => self.connect(primary)?,
        };
        for frame in frames(&message.to_bytes()) {
            connection.send(&frame).ok()?;
        }
        let (deadline, mut fragments) = (Instant::now() + AGAIN, Fragments::default());
        while Instant::now() < deadline {
            let Some(frame) = connection.receive(AGAIN).ok()? else { continue };
            let Some(bytes) = fragments.take(&frame, usize::MAX).unwrap() else { continue };
            let reply = FromServer::parse(&bytes).unwrap();
            assert!(!matches!(reply, FromServer::SchemaError { .. } | FromServer::Stranger { .. }));
            if let Some(answer) = answer(&reply) {
                self.connections.insert(primary, connection);
                return Some(answer);
            }
            if matches!(reply, FromServer::Refused { .. }) {
                break;
            }
        }
        self.connections.insert(primary, connection);
        None
    }

    fn connect(&self, server: Id) -> Option<Connection> {
        let (address, token) = (self.state.addresses.get(&server)?, Token::new(TOKEN));
        let mut connection = Connection::connect(address, &token, AGAIN).ok()?;
        let definition = self.state.definition.as_ref()?.fingerprint().ok()?;
        let hello = FromClient::Hello { client: self.id, definition };
        connection.send(&hello.to_bytes()).ok()?;
        let welcome = connection.receive(LONG).ok()??;
        assert_eq!(FromServer::parse(&welcome).ok()?, FromServer::Welcome { server });
        Some(connection)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
