//! Laws of a service without sockets: its answers and refusals.

mod limits;

use thinwire_link::endpoint::Action;

use super::*;
use crate::clocks::Pace;
use crate::configuration::{Definition, TableDefinition};
use crate::mailbox::Outbound;
use crate::message::Message;
use crate::view::View;
use crate::wire::frames;
use crate::write::{Entry, Part, Pull, Push, Workers, Write};

const ONE: Id = Id(READER | 1);
const TWO: Id = Id(READER | 2);
const THREE: Id = Id(READER | 3);
const WORKER: Id = Id(7);
// Smaller numbers are those of dialled connections.
const FIRST: ClientId = ClientId(10);
const SECOND: ClientId = ClientId(11);

fn definition(rows: u64, consistency: &str) -> Definition {
    let table = TableDefinition {
        name: "counts".to_owned(),
        rows,
        width: 2,
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 1,
        stream: 0,
        values: "f32".to_owned(),
    };
    let consistency = consistency.to_owned();
    Definition {
        tables: vec![table],
        consistency,
        shards: 2,
        backups: 1,
        servers: 1,
        restore: None,
    }
}

/// Server without sockets.
struct Rig {
    service: ServerService,
    layout: Arc<Layout>,
    out: Outbox,
    now: Instant,
}

impl Rig {
    /// Creates a server that does not know the definition.
    fn new(id: Id, definition: &Definition) -> Rig {
        let now = Instant::now();
        let service = ServerService::new(id, Arc::new(Reports::default()), now);
        let layout = Arc::new(definition.layout().unwrap());
        Rig { service, layout, out: Outbox::new(), now }
    }

    /// Creates a server in a view of both shards, with one worker.
    fn in_view(id: Id, view: &View) -> Rig {
        let mut rig = Rig::new(id, &definition(8, "async"));
        rig.define();
        rig.enter(view);
        rig
    }

    fn define(&mut self) {
        self.service.define(&self.layout, Arc::new(|_| ()), self.now, &mut self.out);
    }

    fn enter(&mut self, view: &View) {
        let workers = Workers { version: 1, ids: vec![WORKER] };
        let addresses = [ONE, TWO, THREE].map(|id| (id, format!("host:{}", id.0 & 3))).into();
        let (views, servers) = (vec![view.clone(); 2], [ONE, TWO, THREE].into());
        let state = JobState { views, workers, servers, addresses, ..JobState::default() };
        // The tests are about what the server does with connections, not how it opens them.
        let mut dials = Outbox::new();
        self.service.peers.renew(&others(&state, self.service.id), self.now, &mut dials);
        self.service.peers.open();
        self.service.renew(&state, self.now, &mut self.out);
    }

    fn frame(&mut self, from: ClientId, frame: &[u8]) -> Result<(), Error> {
        self.service.received(from, frame, self.now, &mut self.out)
    }

    fn send(&mut self, from: ClientId, message: &FromClient) -> Result<(), Error> {
        let bytes = message.to_bytes();
        frames(&bytes).try_for_each(|frame| self.frame(from, &frame))
    }

    fn hello(&mut self, from: ClientId, client: Id) {
        self.service.opened(from, self.now, &mut self.out);
        let definition = self.layout.fingerprint;
        self.send(from, &FromClient::Hello { client, definition }).unwrap();
    }

    fn peer(&mut self, from: ClientId, message: &Peer) -> Result<(), Error> {
        self.frame(from, &message.to_bytes())
    }

    fn hello_peer(&mut self, from: ClientId, server: Id) {
        self.service.opened(from, self.now, &mut self.out);
        let definition = self.layout.fingerprint;
        self.peer(from, &Peer::Hello { server, definition }).unwrap();
        assert_eq!(self.told(), [(from, self.welcome())]);
    }

    fn welcome(&self) -> FromServer {
        FromServer::Welcome { server: self.service.id }
    }

    /// Takes out the messages to clients.
    fn told(&mut self) -> Vec<(ClientId, FromServer)> {
        let mut told = Vec::new();
        let mut fragments: BTreeMap<ClientId, crate::wire::Fragments> = BTreeMap::new();
        for action in self.out.take() {
            let Action::Send { to, message } = action else { continue };
            if let Some(bytes) =
                fragments.entry(to).or_default().take(&message, usize::MAX).unwrap()
            {
                told.push((to, FromServer::parse(&bytes).unwrap()));
            }
        }
        told
    }

    /// Advances time to the deadline.
    fn tick(&mut self) {
        self.now = self.service.deadline().unwrap();
        self.service.tick(self.now, &mut self.out);
    }

    fn messages(&mut self, to: Id) -> Vec<Outbound> {
        self.service.peers.drain(to)
    }
}

fn push(number: u64, rows: &[u64]) -> FromClient {
    let part = Part { table: 0, rows: rows.to_vec(), gradient: vec![-1.0; 2 * rows.len()].into() };
    FromClient::Push {
        shard: 0,
        push: Push { client: WORKER, number, step: number, parts: vec![part] },
    }
}

fn pull(client: Id, request: u64, after: u64, rows: &[u64]) -> FromClient {
    let pull = Pull { client, request, after, rows: vec![(0, rows.to_vec())] };
    FromClient::Pull { shard: 0, pull }
}

fn alone() -> View {
    View::found(1, &[ONE])
}

fn acknowledge(number: u64) -> FromServer {
    let pace = Pace { step: number, pushing: 1 };
    FromServer::Acknowledge { shard: 0, number, pace }
}

#[test]
fn a_push_is_acknowledged_and_counts_once() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.hello(FIRST, WORKER);
    for message in [push(1, &[0, 2]), push(1, &[0, 2]), pull(WORKER, 9, 1, &[1, 2])] {
        rig.send(FIRST, &message).unwrap();
    }
    let values = bytemuck::pod_collect_to_vec(&[0.0_f32, 0.0, 1.0, 1.0]);
    let pace = Pace { step: 1, pushing: 1 };
    let answer = FromServer::Answer { shard: 0, request: 9, pace, values };
    let expected = [rig.welcome(), acknowledge(1), acknowledge(1), answer];
    assert_eq!(rig.told(), expected.map(|message| (FIRST, message)));
    let stats = rig.service.stats();
    assert_eq!((stats.primaries, stats.copies, stats.rows), (2, 2, 2));
    assert_eq!((stats.updates, stats.pulls), (1, 1));
    assert_eq!(stats.staleness, BTreeMap::from([(WORKER.to_string(), vec![1])]));
}

#[test]
fn whoever_comes_before_the_definition_waits_for_it() {
    let mut rig = Rig::new(ONE, &definition(8, "async"));
    rig.hello(FIRST, WORKER);
    assert_eq!(rig.out.take(), [Action::Hold(FIRST)]);
    rig.define();
    let welcome = Action::Send { to: FIRST, message: rig.welcome().to_bytes() };
    assert_eq!(rig.out.take(), [welcome, Action::Release(FIRST)]);
}

#[test]
fn another_definition_is_a_strangers() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.service.opened(FIRST, rig.now, &mut rig.out);
    rig.send(FIRST, &FromClient::Hello { client: WORKER, definition: 5 }).unwrap();
    let expected = rig.layout.fingerprint;
    let text = format!("definition with fingerprint 0000000000000005, expected {expected:016x}");
    let stranger = FromServer::Stranger { text }.to_bytes();
    let actions = [Action::Send { to: FIRST, message: stranger }, Action::Close(FIRST)];
    assert_eq!(rig.out.take(), actions);
    assert!(rig.send(FIRST, &push(1, &[0])).is_err());
}

#[test]
fn nobody_speaks_for_another_or_without_a_hello() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.service.opened(FIRST, rig.now, &mut rig.out);
    let error = rig.send(FIRST, &push(1, &[0])).unwrap_err();
    let text = "sent a request of client 0000000000000007 without a hello";
    assert_eq!(error.context, text);
    rig.hello(SECOND, Id(8));
    let error = rig.send(SECOND, &push(1, &[0])).unwrap_err();
    let text = "sent a request of client 0000000000000007, expected one of 0000000000000008";
    assert_eq!(error.context, text);
    let message = Message::Have { view: 1, last: None, committed: 0 };
    let error = rig.peer(SECOND, &Peer::Message { shard: 0, message, tables: Vec::new() });
    assert_eq!(error.unwrap_err().context, "sent a message of a server without a hello");
    let definition = rig.layout.fingerprint;
    assert!(rig.send(SECOND, &FromClient::Hello { client: Id(9), definition }).is_err());
    assert_eq!(rig.service.stats().updates, 0);
}

#[test]
fn roles_are_told_by_the_id() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.hello(FIRST, TWO);
    assert_eq!(rig.out.take()[1], Action::Close(FIRST));
    let definition = rig.layout.fingerprint;
    for (connection, server) in [(SECOND, WORKER), (ClientId(2), ONE)] {
        rig.service.opened(connection, rig.now, &mut rig.out);
        rig.peer(connection, &Peer::Hello { server, definition }).unwrap();
        assert_eq!(rig.out.take()[1], Action::Close(connection));
    }
}

#[test]
fn a_misfit_is_answered_and_the_connection_stays() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.hello(FIRST, WORKER);
    rig.told();
    rig.send(FIRST, &push(1, &[4])).unwrap();
    rig.send(FIRST, &pull(WORKER, 5, 0, &[4])).unwrap();
    let mut elsewhere = push(1, &[0]);
    if let FromClient::Push { shard, .. } = &mut elsewhere {
        *shard = 2;
    }
    rig.send(FIRST, &elsewhere).unwrap();
    rig.send(FIRST, &push(1, &[3])).unwrap();
    let schema_error = |shard, request, text: &str| FromServer::SchemaError {
        shard,
        request,
        text: text.to_owned(),
    };
    let row = "row 4 of table 0, expected ascending rows of 0..4";
    let expected = [
        schema_error(0, Request::Push(1), row),
        schema_error(0, Request::Pull(5), row),
        schema_error(2, Request::Push(1), "shard 2, expected one of 2"),
        acknowledge(1),
    ];
    assert_eq!(rig.told(), expected.map(|message| (FIRST, message)));
}

#[test]
fn a_pull_of_too_much_is_a_misfit() {
    let mut rig = Rig::new(ONE, &definition(1 << 20, "async"));
    rig.define();
    rig.enter(&alone());
    rig.hello(FIRST, Id(0));
    rig.told();
    let rows: Vec<u64> = (0..ANSWER_BYTES_MAX as u64 / 8).collect();
    rig.send(FIRST, &pull(Id(0), 1, 0, &rows)).unwrap();
    let more = [&rows[..], &[rows.len() as u64]].concat();
    rig.send(FIRST, &pull(Id(0), 2, 0, &more)).unwrap();
    let told = rig.told();
    assert!(matches!(&told[0].1, FromServer::Answer { values, .. } if values.len() == 1 << 20));
    assert!(matches!(&told[1].1, FromServer::SchemaError { request: Request::Pull(2), .. }));
}

#[test]
fn requests_to_another_than_the_primary_are_refused() {
    let mut rig = Rig::in_view(TWO, &View::found(1, &[ONE, TWO]));
    rig.hello(FIRST, WORKER);
    rig.told();
    rig.send(FIRST, &push(1, &[0])).unwrap();
    let reason = crate::reason::Reason::Elsewhere { primary: Some(ONE) };
    let refused = FromServer::Refused { shard: 0, request: Request::Push(1), reason };
    assert_eq!(rig.told(), [(FIRST, refused)]);
}

#[test]
fn readers_have_no_names_and_are_told_apart() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.hello(FIRST, Id(0));
    rig.hello(SECOND, Id(0));
    rig.told();
    for reader in [FIRST, SECOND] {
        rig.send(reader, &pull(Id(0), 1, 0, &[0])).unwrap();
    }
    let readers: Vec<ClientId> = rig.told().into_iter().map(|(reader, _)| reader).collect();
    assert_eq!(readers, [FIRST, SECOND]);
}

#[test]
fn a_client_that_connects_again_is_answered_there_alone() {
    let mut rig = Rig::in_view(ONE, &alone());
    rig.hello(FIRST, WORKER);
    rig.send(FIRST, &pull(WORKER, 1, 1, &[0])).unwrap();
    rig.out.take();
    rig.hello(SECOND, WORKER);
    assert_eq!(rig.out.take()[1], Action::Close(FIRST));
    rig.service.closed(FIRST, rig.now, &mut rig.out);
    rig.send(SECOND, &push(1, &[0])).unwrap();
    let told = rig.told();
    assert_eq!(told[0], (SECOND, acknowledge(1)));
    assert!(matches!(told[1], (SECOND, FromServer::Answer { request: 1, .. })));
}

#[test]
fn long_messages_come_in_fragments_within_the_limit() {
    let mut rig = Rig::new(ONE, &definition(1 << 20, "async"));
    rig.define();
    rig.enter(&alone());
    rig.hello(FIRST, WORKER);
    rig.told();
    let rows: Vec<u64> = (0..1 << 19).collect();
    rig.send(FIRST, &push(1, &rows)).unwrap();
    assert_eq!(rig.told(), [(FIRST, acknowledge(1))]);
    let fragment = [&[0, 0][..], &vec![9; FRAGMENT_BYTES]].concat();
    let failed = (0..99).find_map(|_| rig.frame(FIRST, &fragment).err()).unwrap();
    assert_eq!(failed.kind, Kind::Limit);
    rig.service.opened(SECOND, rig.now, &mut rig.out);
    assert_eq!(rig.frame(SECOND, &fragment).unwrap_err().kind, Kind::Limit);
}

#[test]
fn what_peers_send_is_checked_before_the_shard_sees_it() {
    let view = View::found(1, &[TWO, ONE]);
    let mut rig = Rig::in_view(ONE, &view);
    rig.hello_peer(FIRST, TWO);
    let part = Part { table: 0, rows: vec![4], gradient: vec![0.0; 2].into() };
    let write = Arc::new(Write::Update { pushes: Vec::new(), parts: vec![part] });
    let entries = vec![Entry { view: view.number, write }];
    let number = view.number;
    let forward = Message::Forward { view: number, after: 0, entries, committed: 1 };
    let snapshot = Message::Snapshot { view: number, last: 1, clocks: Default::default() };
    for (message, tables) in [(forward, Vec::new()), (snapshot, vec![0; 3])] {
        let error = rig.peer(FIRST, &Peer::Message { shard: 0, message, tables }).unwrap_err();
        assert_eq!(error.context, "sent entries or tables that do not fit shard 0");
    }
    let message = Message::Superseded { view: 1 };
    let shard = Peer::Message { shard: 2, message, tables: Vec::new() };
    assert!(rig.peer(FIRST, &shard).is_err());
    assert!(rig.frame(FIRST, b"\xffnonsense").is_err());
}

/// Carries messages between servers until there are none.
fn carry(rigs: &mut [Rig]) {
    loop {
        let mut count = 0;
        for from in 0..rigs.len() {
            for to in 0..rigs.len() {
                let name = rigs[to].service.id;
                let connection = ClientId(100 + from as u64);
                let messages = if from == to { Vec::new() } else { rigs[from].messages(name) };
                count += messages.len();
                for Outbound { shard, message, tables } in messages {
                    let message = Peer::Message { shard, message, tables };
                    rigs[to].peer(connection, &message).unwrap();
                }
            }
        }
        if count == 0 {
            return;
        }
    }
}

fn rigs(names: &[Id], view: &View) -> Vec<Rig> {
    let mut rigs: Vec<Rig> = names.iter().map(|id| Rig::in_view(*id, view)).collect();
    for rig in &mut rigs {
        for (number, name) in (100..).zip(names) {
            if *name != rig.service.id {
                rig.hello_peer(ClientId(number), *name);
            }
        }
    }
    rigs
}

#[test]
fn a_push_is_acknowledged_when_the_backup_has_it() {
    let mut rigs = rigs(&[ONE, TWO], &View::found(1, &[ONE, TWO]));
    carry(&mut rigs);
    rigs[0].hello(FIRST, WORKER);
    rigs[0].told();
    rigs[0].send(FIRST, &push(1, &[0, 3])).unwrap();
    assert_eq!(rigs[0].told(), []);
    carry(&mut rigs);
    assert_eq!(rigs[0].told(), [(FIRST, acknowledge(1))]);
    // A commit is sent with the next message, or with the tick after next.
    (0..2).for_each(|_| rigs[0].tick());
    carry(&mut rigs);
    assert_eq!(rigs[1].service.stats().rows, 2);
}

#[test]
fn a_learner_takes_the_tables_over_and_is_reported() {
    let mut rigs = rigs(&[ONE, TWO], &alone());
    rigs[0].hello(FIRST, WORKER);
    let count = 200;
    (1..=count).for_each(|number| rigs[0].send(FIRST, &push(number, &[1])).unwrap());
    let view = View { number: 2 << 32, replicas: vec![ONE], learners: vec![TWO] };
    rigs.iter_mut().for_each(|rig| rig.enter(&view));
    carry(&mut rigs);
    let expected = (0..2).map(|shard| ((shard, TWO), view.number)).collect();
    assert_eq!(rigs[0].service.reports.take(), expected);
    let view = View::found(3, &[TWO]);
    rigs.iter_mut().for_each(|rig| rig.enter(&view));
    rigs[1].hello(FIRST, WORKER);
    rigs[1].told();
    rigs[1].send(FIRST, &pull(WORKER, 1, 0, &[1])).unwrap();
    let values = bytemuck::pod_collect_to_vec(&[count as f32; 2]);
    let pace = Pace { step: count, pushing: 1 };
    let answer = FromServer::Answer { shard: 0, request: 1, pace, values };
    assert_eq!(rigs[1].told(), [(FIRST, answer)]);
    assert_eq!(rigs[0].service.stats().copies, 0);
}

#[test]
fn what_is_lost_is_sent_again_in_time() {
    let mut rigs = rigs(&[ONE, TWO], &View::found(1, &[ONE, TWO]));
    carry(&mut rigs);
    rigs[0].hello(FIRST, WORKER);
    rigs[0].send(FIRST, &push(1, &[0])).unwrap();
    rigs[0].told();
    assert_eq!(rigs[0].messages(TWO).len(), 1);
    (0..3).for_each(|_| rigs[0].tick());
    carry(&mut rigs);
    assert_eq!(rigs[0].told(), [(FIRST, acknowledge(1))]);
}
