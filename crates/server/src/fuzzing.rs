//! Server without sockets that accepts arbitrary messages, for fuzz targets. Module `files` does the same for
//! files, `views` for the coordinator's decisions.
//!
//! The server is the primary of the first of two shards and a backup of the second, whose primary is another
//! server. Four connections are open: that server, a worker, a reader, and one without a hello.

mod files;
mod views;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use thinwire_link::endpoint::{Action, ClientId, Node, Outbox};
use thinwire_member::Id;

use crate::configuration::{Definition, JobState, Layout, TableDefinition};
use crate::reports::Reports;
use crate::service::ServerService;
use crate::view::View;
use crate::wire::{Fragments, FromClient, FromServer, Peer, Received};
use crate::write::Workers;
pub use files::{manifest, shard_file, snapshot_number};
pub use views::decide;

const SERVER: Id = Id(Id::SERVER_BIT | 1);
const OTHER: Id = Id(Id::SERVER_BIT | 2);
const WORKER: Id = Id(7);

const CONNECTIONS: u8 = 4;

struct Rig {
    service: ServerService,
    layout: Arc<Layout>,
    out: Outbox,
    now: Instant,
    /// Partly received message of each connection.
    fragments: BTreeMap<ClientId, Fragments>,
}

/// Delivers messages to a server and checks its answers. Each message follows its connection (1 byte) and its
/// length (2 bytes, little-endian).
///
/// # Panics
/// If serialising a parsed message or answer and parsing it again does not give the same bytes.
pub fn deliver(mut bytes: &[u8]) {
    let mut rig = Rig::new();
    while let Some(([connection, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        bytes = rest;
        if !message.is_empty() {
            rig.deliver(connection % CONNECTIONS, message);
        }
    }
}

/// Returns a message in the format of [`deliver`].
pub fn message(connection: u8, message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("a short message");
    [&[connection][..], &length.to_le_bytes(), message].concat()
}

/// Returns the definition of the job, with two tables in two shards.
fn definition() -> Definition {
    let table = |name: &str, (width, values): (u32, &str), optimizer: &str| TableDefinition {
        name: name.to_owned(),
        rows: 8,
        width,
        optimizer: optimizer.to_owned(),
        initial: "normal:0.1".to_owned(),
        seed: 1,
        stream: 0,
        values: values.to_owned(),
    };
    let tables = vec![
        table("a", (2, "f16"), "lazyadam:lr=0.1"),
        table("b", (1, "int8"), "momentum:lr=1,factor=0.9"),
    ];
    let consistency = "bounded:2".to_owned();
    Definition { tables, consistency, shards: 2, backups: 1, servers: 1, restore: None }
}

impl Rig {
    fn new() -> Rig {
        let definition = definition();
        let layout = Arc::new(definition.layout().expect("a sound definition"));
        let (now, mut out) = (Instant::now(), Outbox::new());
        let mut service = ServerService::new(SERVER, Arc::new(Reports::default()), now);
        service.define(&layout, Arc::new(|_| ()), now, &mut out);
        let views = vec![View::found(1, &[SERVER]), View::found(1, &[OTHER, SERVER])];
        let workers = Workers { version: 1, ids: vec![WORKER] };
        let state = JobState { views, workers, ..JobState::default() };
        service.renew(&state, now, &mut out);
        let mut rig = Rig { service, layout, out, now, fragments: BTreeMap::new() };
        (0..CONNECTIONS).for_each(|connection| rig.open(connection));
        rig
    }

    fn open(&mut self, connection: u8) {
        self.service.opened(ClientId(connection.into()), self.now, &mut self.out);
        let definition = self.layout.fingerprint;
        let hello = match connection {
            0 => FromClient::Hello { client: WORKER, definition }.to_bytes(),
            1 => Peer::Hello { server: OTHER, definition }.to_bytes(),
            2 => FromClient::Hello { client: Id(0), definition }.to_bytes(),
            _ => return,
        };
        self.deliver(connection, &hello);
    }

    fn deliver(&mut self, connection: u8, message: &[u8]) {
        match Received::parse(message) {
            // As bytes, because values may be NaN.
            Ok(Received::Client(read)) => {
                let bytes = read.to_bytes();
                assert_eq!(FromClient::parse(&bytes).expect("written back").to_bytes(), bytes);
            }
            Ok(Received::Peer(read)) => {
                let bytes = read.to_bytes();
                assert_eq!(Peer::parse(&bytes).expect("written back").to_bytes(), bytes);
            }
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
        let client = ClientId(connection.into());
        let received = self.service.received(client, message, self.now, &mut self.out);
        if received.is_err() {
            self.service.closed(client, self.now, &mut self.out);
        }
        let is_closed = self.check() || received.is_err();
        if self.service.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.service.tick(self.now, &mut self.out);
        }
        if is_closed {
            self.fragments.remove(&client);
            self.open(connection);
        }
    }

    /// Checks the server's answers. Returns whether the server closes a connection.
    fn check(&mut self) -> bool {
        let mut closes = false;
        for action in self.out.take() {
            match action {
                Action::Send { to, message } => {
                    let whole = self.fragments.entry(to).or_default().take(&message, usize::MAX);
                    if let Some(bytes) = whole.expect("servers send well-formed fragments") {
                        let read = FromServer::parse(&bytes).expect("servers send messages");
                        assert_eq!(read.to_bytes(), *bytes);
                    }
                }
                Action::Close(client) => {
                    self.service.closed(client, self.now, &mut self.out);
                    closes = true;
                }
                _ => {}
            }
        }
        closes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::write::{Part, Pull, Push};

    proptest! {
        #[test]
        fn any_messages_are_taken(
            messages in prop::collection::vec(
                (0_u8..4, 0..4_u8, prop::collection::vec(0_u8..4, 0..40)), 0..6
            )
        ) {
            let message = |(connection, kind, rest): &(u8, u8, Vec<u8>)| {
                message(*connection, &[&[*kind], &rest[..]].concat())
            };
            deliver(&messages.iter().flat_map(message).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn a_push_reaches_the_tables() {
        let mut rig = Rig::new();
        let part = Part { table: 0, rows: vec![1], gradient: vec![1.0; 2].into() };
        let push = Push { client: WORKER, number: 1, step: 1, parts: vec![part] };
        rig.deliver(0, &FromClient::Push { shard: 0, push }.to_bytes());
        let pull = Pull { client: Id(0), request: 1, after: 0, rows: vec![(0, vec![1])] };
        rig.deliver(2, &FromClient::Pull { shard: 0, pull }.to_bytes());
        let stats = rig.service.stats();
        assert_eq!((stats.updates, stats.pulls, stats.rows), (1, 1, 1));
    }

    #[test]
    fn rounded_pushes_reach_the_tables() {
        let mut seed = &include_bytes!("../../../fuzz/seeds/rows/coded")[..];
        let mut rig = Rig::new();
        while let Some(([connection, low, high], rest)) = seed.split_first_chunk() {
            let (message, rest) = rest.split_at(u16::from_le_bytes([*low, *high]).into());
            rig.deliver(*connection, message);
            seed = rest;
        }
        let stats = rig.service.stats();
        assert_eq!((stats.updates, stats.pulls, stats.rows), (2, 1, 2));
    }

    #[test]
    fn a_snapshot_reaches_the_tables() {
        let seed = include_bytes!("../../../fuzz/seeds/rows/snapshot");
        let mut rig = Rig::new();
        rig.deliver(seed[0], &seed[3..]);
        assert_eq!(rig.service.stats().rows, 1);
    }

    #[test]
    fn every_seed_is_taken() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/rows");
        for entry in std::fs::read_dir(folder).unwrap() {
            deliver(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
}
