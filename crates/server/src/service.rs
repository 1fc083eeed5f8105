//! Node of a server: connects its shards to clients, peers and the coordinator.
//!
//! Inputs are messages of clients and peers and the state of the job; outputs are answers, at once or when
//! the shard allows. A message that is malformed, or that its sender may not send, closes only the sender's
//! connection; a request that does not fit the tables gets an error as answer. The service has no sockets,
//! and `now` is an argument.
//!
//! # Bounds
//!
//! Memory that other processes can make a server use, in addition to the rows:
//!
//! | | at most | then |
//! |---|---|---|
//! | input of a connection | a frame (1 MiB) and a read-ahead | it stays in the socket |
//! | incomplete long messages of clients | [`UNFINISHED_BYTES_MAX`](sessions::UNFINISHED_BYTES_MAX) on all connections, or one message | refused as busy, and the rest of the message is dropped |
//! | incomplete message of another server | the largest shard and 16 MiB, per server | the connection ends |
//! | pushes that wait | the next one of each worker, per shard | a later one is refused as early |
//! | pulls that wait | [`Options::pulls_max`](crate::Options::pulls_max) per shard, and [`Options::pull_bytes_max`](crate::Options::pull_bytes_max) of them per client, or one pull | refused as busy |
//! | log | per shard, [`Options::uncommitted_max`](crate::Options::uncommitted_max) entries that wait for backups, and as many plus one that are committed | pushes wait |
//! | answers that a client does not read | 8 MiB and an answer; from 1 MiB on, the server reads no messages of the client | the connection ends |
//! | messages to another server | 64 MiB and a message | dropped, and sent again |
//! | rate of a client | [`Limits::client_rate`] | it stays in the socket |
//!
//! A push has at most one gradient per row, so the waiting pushes of a worker are bounded by the rows of the
//! shards that this server leads. A smaller limit could deadlock: a synchronous step is complete only when
//! the pushes of all workers wait, and if the limit admitted only some pushes of each of two workers, both
//! would wait for the other.
//!
//! A client that is refused as busy repeats the request after growing pauses. A client that does not read,
//! does not send, or exceeds its rate delays no other client, except where
//! [`Consistency`](crate::Consistency) makes others wait for a slow worker.

mod memory;
mod sessions;
mod shard_replica;
mod stats;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_link::endpoint::{ClientId, Node, Outbox};
use thinwire_link::{Bandwidth, Error, Kind};
use thinwire_member::Id;

use crate::configuration::{JobState, Layout};
use crate::peers::{Lost, Peers};
use crate::reason::{Reason, Request};
use crate::reports::Reports;
use crate::shard::Event;
use crate::table::{MemoryLimit, Tables};
use crate::wire::{FRAGMENT_BYTES, FromClient, FromServer, Peer, Received};
use sessions::{ClientIdentity, Frame, Session, Sessions};
pub use shard_replica::ANSWER_BYTES_MAX;
use shard_replica::{Effects, ShardReplica, recovered};
pub use stats::Stats;

/// Unread bytes at which a connection is closed: twice the answers that a client requests at a time.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Largest size in bytes of a fragment with its header.
const FRAME_BYTES_MAX: usize = 2 + FRAGMENT_BYTES;
/// Largest size in bytes of a message without its rows and values: clocks and names of all workers.
const HEAD_BYTES_MAX: usize = 16 << 20;
/// Bit in the ids of readers, which no worker's id has.
const READER: u64 = Id::SERVER_BIT;

/// Limits of a server; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory limit of rows, and the folder for spilled rows.
    pub memory: Option<MemoryLimit>,
    /// Memory that the server may use without a limit of rows, in bytes; `None` if it is not known. A job whose
    /// tables need more is refused.
    pub free_bytes: Option<u64>,
    /// Limit on the rate of each client's requests and their answers together. The server reads more slowly
    /// from a client that exceeds it.
    pub client_rate: Option<Bandwidth>,
}

/// State machine of a server, without sockets.
#[derive(Debug)]
pub struct ServerService {
    id: Id,
    /// Time zero of the shards.
    begun: Instant,
    layout: Option<Arc<Layout>>,
    /// Shards by number; empty before the definition is known.
    replicas: Vec<ShardReplica>,
    sessions: Sessions,
    peers: Peers,
    reports: Arc<Reports>,
    /// Largest accepted message, in bytes.
    message_bytes_max: usize,
    limits: Limits,
    /// Whether this server lost its rows; it then answers no requests any more.
    has_failed: bool,
}

impl ServerService {
    /// Creates a server without limits, a definition or a view.
    pub fn new(id: Id, reports: Arc<Reports>, begun: Instant) -> ServerService {
        ServerService {
            id,
            begun,
            layout: None,
            replicas: Vec::new(),
            sessions: Sessions::default(),
            peers: Peers::default(),
            reports,
            message_bytes_max: 0,
            limits: Limits::default(),
            has_failed: false,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn within(self, limits: Limits) -> ServerService {
        ServerService { limits, ..self }
    }

    /// Sets the definition, and answers the connections that waited for it. From the next state on, this
    /// server connects to its peers, and calls `lost` with those that it cannot reach.
    pub fn define(&mut self, layout: &Arc<Layout>, lost: Lost, now: Instant, out: &mut Outbox) {
        if self.layout.is_some() {
            return;
        }
        self.peers.introduce(self.id, layout.fingerprint, lost);
        self.layout = Some(Arc::clone(layout));
        self.replicas = (0..layout.shards.len() as u32)
            .map(|it| ShardReplica::new(self.id, it, layout))
            .collect();
        let most = layout.shards.iter().map(|shard| Tables::bytes_max(shard, &layout.tables)).max();
        self.message_bytes_max = HEAD_BYTES_MAX + most.unwrap_or(0);
        for (connection, claims, definition) in self.sessions.waiting() {
            self.admit(connection, claims, definition, now, out);
            out.release(connection);
        }
    }

    /// Sets the rows with which shards begin; called before the first views.
    pub fn restore(&mut self, tables: BTreeMap<u32, Tables>) {
        for (shard, tables) in tables {
            self.replicas[shard as usize].restored = Some(tables);
        }
    }

    /// Updates peers, views, workers and snapshot from the job's state.
    pub fn renew(&mut self, state: &JobState, now: Instant, out: &mut Outbox) {
        self.peers.renew(&others(state, self.id), now, out);
        self.share_memory(&state.views, out);
        // Perhaps just now, for want of memory or because of the disk.
        if self.has_failed {
            return;
        }
        // Views come first: lists of workers and orders are for the primaries in them.
        for (shard, view) in state.views.iter().enumerate() {
            let known = self.replicas.get(shard).map(|replica| replica.shard.view().number);
            if known.is_some_and(|known| known < view.number) {
                self.on(shard, Event::View(view.clone()), now, out);
            }
        }
        for shard in 0..self.replicas.len() {
            self.on(shard, Event::Workers(state.workers.clone()), now, out);
        }
        self.reports.keep(recovered(&self.replicas, state));
        let Some(snapshot) = &state.snapshot else { return };
        let (number, order) = (snapshot.number, snapshot.order());
        for shard in 0..self.replicas.len() {
            let order = order.clone();
            self.on(shard, Event::Snapshot { snapshot: number, order }, now, out);
        }
    }

    /// Returns stats for monitoring.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.replicas, self.id)
    }

    fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    fn on(&mut self, shard: usize, event: Event, now: Instant, out: &mut Outbox) {
        self.with(shard, out, now, |replica, now, effects| replica.on(event, now, effects));
    }

    /// Calls `call` with the replica of a shard, if there is one.
    fn with<T>(
        &mut self,
        shard: usize,
        out: &mut Outbox,
        now: Instant,
        call: impl FnOnce(&mut ShardReplica, Duration, &mut Effects<'_>) -> T,
    ) -> Option<T> {
        let time = self.time(now);
        let ServerService { replicas, sessions, peers, reports, .. } = self;
        let mut effects = Effects { out, sessions, now, peers, reports };
        let done = replicas.get_mut(shard).map(|replica| call(replica, time, &mut effects));
        self.heed(shard, out);
        done
    }

    /// Handles a hello; it may be a repeated one.
    fn greet(
        &mut self,
        connection: ClientId,
        claims: ClientIdentity,
        definition: u64,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match self.sessions.session(connection) {
            Session::Known(known) if known == claims => self.welcome(connection, out),
            Session::Unknown if self.layout.is_none() => {
                self.sessions.set(connection, Session::Waiting { claims, definition });
                out.hold(connection);
            }
            Session::Unknown => self.admit(connection, claims, definition, now, out),
            _ => return Err(corrupt("sent two hellos that differ".to_owned())),
        }
        Ok(())
    }

    fn welcome(&self, connection: ClientId, out: &mut Outbox) {
        out.send(connection, &FromServer::Welcome { server: self.id }.to_bytes());
    }

    /// Admits a process if its definition equals the job's and its id is of the right role.
    fn admit(
        &mut self,
        connection: ClientId,
        claims: ClientIdentity,
        definition: u64,
        now: Instant,
        out: &mut Outbox,
    ) {
        let expected = self.layout.as_ref().map_or(0, |layout| layout.fingerprint);
        if definition != expected {
            let text =
                format!("definition with fingerprint {definition:016x}, expected {expected:016x}");
            return reject(connection, text, out);
        }
        let (id, is_right) = match claims {
            ClientIdentity::Client { said, .. } => (said, !said.is_server()),
            ClientIdentity::Peer(id) => (id, id.is_server() && id != self.id),
        };
        if !is_right {
            return reject(connection, format!("id {id} does not have the role of its hello"), out);
        }
        if let Some(before) = self.sessions.set(connection, Session::Known(claims)) {
            self.sessions.close(before);
            reject(before, format!("client {id} has connected again"), out);
        }
        if let (ClientIdentity::Client { .. }, Some(rate)) = (claims, self.limits.client_rate) {
            self.sessions.limit(connection, rate, now);
        }
        self.welcome(connection, out);
    }

    fn hear_client(
        &mut self,
        connection: ClientId,
        message: FromClient,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match message {
            FromClient::Hello { client, definition } => {
                let id = if client == Id(0) { Id(READER | connection.0) } else { client };
                let claims = ClientIdentity::Client { id, said: client };
                self.greet(connection, claims, definition, now, out)
            }
            FromClient::Push { shard, push } => {
                self.check(connection, push.client)?;
                let request = Request::Push(push.number);
                let done = self.with(shard as usize, out, now, |replica, now, effects| {
                    replica.push(push, now, effects);
                });
                done.unwrap_or_else(|| self.no_shard(connection, shard, request, out));
                Ok(())
            }
            FromClient::Pull { shard, mut pull } => {
                pull.client = self.check(connection, pull.client)?;
                let request = Request::Pull(pull.request);
                let done = self.with(shard as usize, out, now, |replica, now, effects| {
                    replica.pull(pull, now, effects);
                });
                done.unwrap_or_else(|| self.no_shard(connection, shard, request, out));
                Ok(())
            }
        }
    }

    /// Returns the id by which the shards know a client, after checking the id in its request.
    fn check(&self, connection: ClientId, said: Id) -> Result<Id, Error> {
        match self.sessions.session(connection) {
            Session::Known(ClientIdentity::Client { id, said: known }) if known == said => Ok(id),
            Session::Known(ClientIdentity::Client { said: known, .. }) => {
                Err(corrupt(format!("sent a request of client {said}, expected one of {known}")))
            }
            _ => Err(corrupt(format!("sent a request of client {said} without a hello"))),
        }
    }

    fn no_shard(&self, connection: ClientId, shard: u32, request: Request, out: &mut Outbox) {
        let text = format!("shard {shard}, expected one of {}", self.replicas.len());
        let message = FromServer::SchemaError { shard, request, text };
        out.send(connection, &message.to_bytes());
    }

    fn hear_peer(
        &mut self,
        connection: ClientId,
        message: Peer,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let (shard, message, tables) = match message {
            Peer::Hello { server, definition } => {
                let claims = ClientIdentity::Peer(server);
                return self.greet(connection, claims, definition, now, out);
            }
            Peer::Message { shard, message, tables } => (shard, message, tables),
        };
        let Session::Known(ClientIdentity::Peer(from)) = self.sessions.session(connection) else {
            return Err(corrupt("sent a message of a server without a hello".to_owned()));
        };
        let fits = self.with(shard as usize, out, now, |replica, now, effects| {
            replica.hear(from, message, &tables, now, effects)
        });
        let fits = fits.unwrap_or(false);
        let schema_error = || format!("sent entries or tables that do not fit shard {shard}");
        if fits { Ok(()) } else { Err(corrupt(schema_error())) }
    }
}

impl Node for ServerService {
    fn opened(&mut self, client: ClientId, _now: Instant, out: &mut Outbox) {
        match self.peers.knows(client) {
            true => self.peers.opened(client, out),
            false => self.sessions.open(client),
        }
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        if self.has_failed {
            return Err(Error::new(Kind::Left, "asks a server that has lost its rows"));
        }
        if self.peers.knows(client) {
            return self.peers.received(client, message);
        }
        // Nothing is buffered for strangers: their messages must come in one frame.
        let is_known = matches!(self.sessions.session(client), Session::Known(_));
        let bytes_max = if is_known { self.message_bytes_max } else { 0 };
        if self.sessions.count(client, message.len(), now) {
            out.hold(client);
        }
        let message = match self.sessions.assemble(client, message, bytes_max)? {
            Frame::Whole(message) => message,
            Frame::Part => return Ok(()),
            Frame::NoRoom(shard, request) => {
                let reason = Reason::Busy { waiting: self.sessions.unfinished() };
                out.send(client, &FromServer::Refused { shard, request, reason }.to_bytes());
                return Ok(());
            }
        };
        match Received::parse(&message)? {
            Received::Client(message) => self.hear_client(client, message, now, out),
            Received::Peer(message) => self.hear_peer(client, message, now, out),
        }
    }

    fn closed(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.sessions.close(client);
        self.peers.closed(client, now, out);
    }

    fn has_room(&mut self, client: ClientId, _now: Instant, out: &mut Outbox) {
        self.peers.has_room(client, out);
    }

    fn answered(&mut self, client: ClientId, _now: Instant, out: &mut Outbox) {
        self.peers.answered(client, out);
    }

    fn deadline(&self) -> Option<Instant> {
        if self.has_failed {
            return None;
        }
        let next = self.replicas.iter().map(|replica| replica.shard.deadline()).min();
        let next = next.and_then(|next| self.begun.checked_add(next));
        [next, self.sessions.deadline()].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        self.sessions.released(now).into_iter().for_each(|client| out.release(client));
        let time = self.time(now);
        for shard in 0..self.replicas.len() {
            if self.replicas[shard].shard.deadline() <= time {
                self.on(shard, Event::Tick, now, out);
            }
        }
    }

    fn message_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }

    fn output_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX
    }
}

/// Returns the addresses of a job's servers, without this one.
fn others(state: &JobState, own: Id) -> BTreeMap<Id, &str> {
    let shares = |id: &Id| {
        state.servers.contains(id) || state.views.iter().any(|view| view.replicas.contains(id))
    };
    let others = state.addresses.iter().filter(|(id, _)| **id != own && shares(id));
    others.map(|(id, address)| (*id, &address[..])).collect()
}

fn reject(connection: ClientId, text: String, out: &mut Outbox) {
    out.send(connection, &FromServer::Stranger { text }.to_bytes());
    out.close(connection);
}

fn corrupt(context: String) -> Error {
    Error::new(Kind::Corrupt, context)
}

#[cfg(test)]
mod tests;
