//! What can go wrong while ranks find each other: each is one line that says what and who.

mod ports;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use ports::{LONG, Post, connect_all, options, shared, tag};
use proptest::prelude::*;
use thinwire_link::store::{self, Store};
use thinwire_link::tcp::{Cancel, Options, connect};
use thinwire_link::{Error, Kind, Token};
use thinwire_wire::{Rank, VERSION, World};

const SHORT: Duration = Duration::from_millis(200);
/// Enough to connect on a busy machine, where nothing but the timeout ends a test.
const ENOUGH: Duration = Duration::from_secs(5);

fn short() -> Options {
    Options { timeout: SHORT, ..options() }
}

fn enough() -> Options {
    Options { timeout: ENOUGH, ..options() }
}

fn failure(result: Result<thinwire_link::Link, Error>) -> Error {
    result.map(|_| ()).unwrap_err()
}

#[test]
fn a_rank_that_never_appears_is_named() {
    let store = store::mem::Mem::new();
    let world = World::new(0, 4).unwrap();
    store.set("epoch/0/rank/2", b"4 127.0.0.1:9 0").unwrap();
    let error = failure(connect(world, &store, &short()));
    assert_eq!((error.kind, error.rank), (Kind::Timeout, Some(Rank(1))));
    assert_eq!(error.to_string(), "ranks 1, 3 of 4 did not appear within 1 s");
}

#[test]
fn a_rank_that_cannot_be_reached_is_named_with_the_reason() {
    let store = store::mem::Mem::new();
    let closed = "127.0.0.1:1";
    store.set("epoch/0/rank/0", format!("2 {closed} 0").as_bytes()).unwrap();
    let error = failure(connect(World::new(1, 2).unwrap(), &store, &enough()));
    let expected = format!(
        "could not connect to rank 0 of 2 within 5 s; rank 0 at {closed}: connection refused"
    );
    assert_eq!(error.to_string(), expected);
}

/// A store that remembers for how long it was asked to wait at most.
struct Watched<S> {
    store: S,
    longest: Mutex<Duration>,
}

impl<S: Store> Watched<S> {
    fn new(store: S) -> Watched<S> {
        Watched { store, longest: Mutex::default() }
    }
}

impl<S: Store> Store for Watched<S> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.store.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        let mut longest = self.longest.lock().unwrap();
        *longest = timeout.max(*longest);
        drop(longest);
        self.store.get(key, timeout)
    }
}

/// Cancels rank 0 of 2, which has left its address in `store`; returns what it says.
fn cancelled(ranks: &Watched<impl Store>, store: &dyn Store) -> Error {
    let cancel = Cancel::new();
    let options = Options { cancel: Some(cancel.clone()), ..options() };
    thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), ranks, &options));
        store.get("epoch/0/rank/0", LONG).unwrap();
        // The rank begins to wait meanwhile, though it says the same if it has not.
        thread::sleep(SHORT);
        cancel.cancel();
        failure(zero.join().unwrap())
    })
}

#[test]
fn a_rank_that_waits_for_another_to_appear_can_be_cancelled() {
    let said = "cancelled while waiting for rank 1 of 2 to appear";
    let mem = store::mem::Mem::new();
    let ranks = Watched::new(mem.clone());
    let error = cancelled(&ranks, &mem);
    assert_eq!((error.kind, error.to_string().as_str()), (Kind::Cancelled, said));
    assert!(*ranks.longest.lock().unwrap() <= Duration::from_millis(50));

    let token = options().token;
    let server = store::tcp::Server::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let address = server.address().to_string();
    let client = || store::tcp::Client::connect(&address, &token, LONG).unwrap();
    let error = cancelled(&Watched::new(client()), &client());
    assert_eq!((error.kind, error.to_string().as_str()), (Kind::Cancelled, said));
}

#[test]
fn a_rank_that_connects_to_others_can_be_cancelled() {
    let store = store::mem::Mem::new();
    store.set("epoch/0/rank/1", b"2 127.0.0.1:9 0").unwrap();
    let error = cancelled(&Watched::new(store.clone()), &store);
    assert_eq!(error.kind, Kind::Cancelled);
    assert_eq!(error.to_string(), "cancelled while connecting to rank 1 of 2");
}

#[test]
fn another_token_is_told_to_both_sides() {
    let store = store::mem::Mem::new();
    let tokens = ["hunter2", "swordfish"];
    let results = connect_all(2, &store, |rank| Options {
        token: Token::new(tokens[rank as usize]),
        ..enough()
    });
    for result in results {
        let error = failure(result);
        assert_eq!(error.kind, Kind::TokenMismatch, "{error}");
        assert!(error.to_string().ends_with("has another job token than this side"), "{error}");
        assert!(tokens.iter().all(|token| !format!("{error:?}").contains(token)));
    }
}

/// Whoever comes first, and even if the rank that they wait for does not exist.
#[test]
fn worlds_that_disagree_are_told_to_both_sides() {
    for (first, second) in [((0, 2), (1, 3)), ((1, 3), (0, 2)), ((0, 2), (2, 3)), ((2, 3), (0, 2))]
    {
        let store = store::mem::Mem::new();
        let start = Instant::now();
        let fails = |(rank, size)| {
            let error = failure(connect(World::new(rank, size).unwrap(), &store, &options()));
            assert_eq!(error.kind, Kind::WorldMismatch, "{error}");
            error.to_string()
        };
        let errors = thread::scope(|scope| {
            let early = scope.spawn(|| fails(first));
            store.get("epoch/0/world", LONG).unwrap();
            let late = scope.spawn(|| fails(second));
            [early, late].map(|rank| rank.join().unwrap())
        });
        let says = |(rank, size), (other, another)| {
            format!("rank {rank} was started with world {size}, rank {other} with world {another}")
        };
        assert_eq!(errors, [says(first, second), says(second, first)]);
        assert!(start.elapsed() < LONG / 2);
    }
}

#[test]
fn two_processes_cannot_be_the_same_rank() {
    let store = store::mem::Mem::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| connect(World::new(1, 2).unwrap(), &store, &options()));
        store.get("epoch/0/rank/1", LONG).unwrap();
        let error = failure(connect(World::new(1, 2).unwrap(), &store, &options()));
        assert_eq!((error.kind, error.rank), (Kind::RankTaken, Some(Rank(1))));
        assert!(error.to_string().starts_with("rank 1 is taken by another process: "), "{error}");
        let zero = connect(World::new(0, 2).unwrap(), &store, &options());
        assert!(zero.is_ok() && first.join().unwrap().is_ok(), "the first one is not disturbed");
    });
}

/// Stores that do not see each other cannot tell them apart; rank 0 can.
#[test]
fn two_processes_that_are_the_same_rank_cannot_both_connect() {
    one_of_two_is_refused(&enough());
}

/// The first one is known while it agrees on memory, before it is connected.
#[test]
fn two_processes_that_are_the_same_rank_cannot_both_share_memory() {
    one_of_two_is_refused(&Options { timeout: ENOUGH, ..shared() });
}

fn one_of_two_is_refused(options: &Options) {
    let stores = [store::mem::Mem::new(), store::mem::Mem::new()];
    let world = |rank| World::new(rank, 3).unwrap();
    stores.iter().for_each(|store| store.set("epoch/0/rank/2", b"3 127.0.0.1:9 0").unwrap());
    let errors = thread::scope(|scope| {
        let zero = scope.spawn(|| failure(connect(world(0), &stores[0], options)));
        let address = stores[0].get("epoch/0/rank/0", LONG).unwrap();
        stores[1].set("epoch/0/rank/0", &address).unwrap();
        let ones = stores
            .each_ref()
            .map(|store| scope.spawn(move || failure(connect(world(1), store, options))));
        assert_eq!(zero.join().unwrap().rank, Some(Rank(2)));
        ones.map(|one| one.join().unwrap())
    });
    let taken = errors.iter().find(|error| error.kind == Kind::RankTaken).expect("one is refused");
    assert_eq!(taken.to_string(), "rank 0 is connected to another process that is rank 1");
}

#[test]
fn nonsense_in_the_store_is_an_error() {
    let store = store::mem::Mem::new();
    store.set("epoch/0/rank/0", b"\xff\x00nonsense").unwrap();
    let error = failure(connect(World::new(1, 2).unwrap(), &store, &options()));
    assert_eq!((error.kind, error.rank), (Kind::Corrupt, Some(Rank(0))));
}

fn survives(disturb: impl FnOnce(std::net::SocketAddr)) {
    survives_for(LONG, disturb);
}

/// Starts rank 0 of 2, lets `disturb` do its worst with its listener, then starts rank 1.
fn survives_for(timeout: Duration, disturb: impl FnOnce(std::net::SocketAddr)) {
    let store = store::mem::Mem::new();
    let options = || Options { timeout, ..options() };
    let ranks = thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &options()));
        let value = String::from_utf8(store.get("epoch/0/rank/0", LONG).unwrap()).unwrap();
        disturb(value.split(' ').nth(1).unwrap().parse().unwrap());
        let one = connect(World::new(1, 2).unwrap(), &store, &options());
        [zero.join().unwrap().unwrap(), one.unwrap()]
    });
    let ranks = ranks.map(|mut link| {
        thread::spawn(move || {
            let (mut post, peer) = (Post::default(), link.world().after(1));
            post.send(&mut link, peer, tag(0), 1000);
            post.drive(&mut link, |p| p.outgoing.is_empty() && p.received.len() == 1).unwrap();
            link.finish(LONG).unwrap();
        })
    });
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn silent_strangers_do_not_hold_up_the_job() {
    let start = Instant::now();
    let mut strangers = Vec::new();
    survives(|address| strangers.extend((0..60).map(|_| TcpStream::connect(address).unwrap())));
    assert!(start.elapsed() < LONG / 2);
}

/// Places are taken for longer than the ranks are ready to wait.
#[test]
fn silent_strangers_of_one_address_lose_their_places_to_ranks() {
    let mut strangers = Vec::new();
    survives_for(Duration::from_secs(4), |address| {
        strangers.extend((0..100).map(|_| TcpStream::connect(address).unwrap()));
    });
}

/// The bytes that rank 1 sends before it has proven anything, as recorded on the network.
fn overheard() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = store::mem::Mem::new();
    let address = format!("2 {} 0", listener.local_addr().unwrap());
    store.set("epoch/0/rank/0", address.as_bytes()).unwrap();
    let cancel = Cancel::new();
    let options = Options { cancel: Some(cancel.clone()), ..options() };
    thread::scope(|scope| {
        scope.spawn(|| connect(World::new(1, 2).unwrap(), &store, &options));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[b'T', b'W', b'I', b'R', VERSION, 0, 0, 0]).unwrap();
        let mut said = vec![0; 8 + 2 + 48];
        stream.read_exact(&mut said).unwrap();
        cancel.cancel();
        said
    })
}

#[test]
fn who_repeats_a_handshake_is_a_stranger() {
    let said = overheard();
    let mut strangers = Vec::new();
    survives_for(Duration::from_secs(4), |address| {
        strangers.extend((0..100).map(|_| {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(&said).unwrap();
            stranger
        }));
    });
}

#[test]
fn strangers_are_named_where_a_rank_is_missing() {
    let store = store::mem::Mem::new();
    store.set("epoch/0/rank/1", b"2 127.0.0.1:9 0").unwrap();
    let error = thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &enough()));
        let value = String::from_utf8(store.get("epoch/0/rank/0", LONG).unwrap()).unwrap();
        let address = value.split(' ').nth(1).unwrap();
        (0..30).for_each(|_| drop(TcpStream::connect(address).unwrap()));
        failure(zero.join().unwrap())
    });
    let strangers = "30 connections did not prove the job token, from 127.0.0.1";
    let expected = format!("could not connect to rank 1 of 2 within 5 s; {strangers}");
    assert_eq!((error.kind, error.to_string()), (Kind::Timeout, expected));
}

#[test]
fn a_stranger_of_another_version_is_told_ours() {
    survives(|address| {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"TWIR\x07\0\0\0").unwrap();
        // Rank 0 may not look before rank 1 has left its address: the answer is read later.
        thread::spawn(move || {
            let mut said = Vec::new();
            stranger.read_to_end(&mut said).unwrap();
            assert_eq!(said, [b'T', b'W', b'I', b'R', VERSION, 0, 0, 0]);
        });
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_bytes_at_the_listener_do_no_harm(
        noise in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 1..6)
    ) {
        survives(|address| {
            for (preamble, bytes) in noise {
                let mut stranger = TcpStream::connect(address).unwrap();
                if preamble {
                    let _ = stranger.write_all(&[b'T', b'W', b'I', b'R', VERSION, 0, 0, 0]);
                }
                let _ = stranger.write_all(&bytes);
            }
        });
    }
}
