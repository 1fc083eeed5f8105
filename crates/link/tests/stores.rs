//! The contract of every store, and what goes wrong on the way to one.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::store::{KEY_BYTES_MAX, STORE_BYTES_MAX, Store, VALUE_BYTES_MAX, mem, tcp};
use thinwire_link::{Kind, Token};
use thinwire_wire::{Hint, VERSION};

const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(50);

fn token() -> Token {
    Token::new("stores")
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Runs `law` over two views of each kind of store.
fn every_store(law: impl Fn(&dyn Store, &dyn Store)) {
    let store = mem::Mem::new();
    law(&store, &store.clone());

    let server = tcp::Server::bind(local(), &token()).unwrap();
    let address = server.address().to_string();
    let client = || tcp::Client::connect(&address, &token(), LONG).unwrap();
    law(&client(), &client());
}

#[test]
fn what_one_rank_sets_another_gets() {
    every_store(|a, b| {
        a.set("epoch/0/rank/1", b"value").unwrap();
        assert_eq!(b.get("epoch/0/rank/1", Duration::ZERO).unwrap(), b"value");
        b.set("empty", b"").unwrap();
        assert_eq!(a.get("empty", LONG).unwrap(), b"");
    });
}

#[test]
fn a_reader_that_comes_first_waits() {
    every_store(|a, b| {
        thread::scope(|scope| {
            let reader = scope.spawn(|| b.get("later", LONG).unwrap());
            a.set("other", b"x").unwrap();
            a.set("later", b"y").unwrap();
            assert_eq!(reader.join().unwrap(), b"y");
        });
    });
}

#[test]
fn the_first_writer_wins() {
    every_store(|a, b| {
        a.set("rank/1", b"first").unwrap();
        a.set("rank/1", b"first").unwrap();
        let error = b.set("rank/1", b"second").unwrap_err();
        assert_eq!(error.kind, Kind::RankTaken);
        assert_eq!(error.to_string(), "rank/1 is taken already, by first");
        assert_eq!(b.get("rank/1", LONG).unwrap(), b"first");
    });
}

#[test]
fn a_value_that_never_comes_is_a_timeout() {
    every_store(|a, _| {
        let start = Instant::now();
        let error = a.get("never", SHORT).unwrap_err();
        assert_eq!(error.kind, Kind::Timeout);
        assert_eq!(error.to_string(), "no process wrote never within 0.1 s");
        assert!(start.elapsed() >= SHORT);
    });
}

#[test]
fn limits_hold() {
    every_store(|a, b| {
        a.set("large", &vec![7; VALUE_BYTES_MAX]).unwrap();
        assert_eq!(b.get("large", LONG).unwrap().len(), VALUE_BYTES_MAX);
        assert_eq!(a.set("larger", &vec![7; VALUE_BYTES_MAX + 1]).unwrap_err().kind, Kind::Limit);
        assert_eq!(a.set(&"k".repeat(KEY_BYTES_MAX + 1), b"").unwrap_err().kind, Kind::Limit);
        for key in ["", "/", "a//b", "../x", ".hidden", "A", "a b", "a\n"] {
            assert_eq!(a.set(key, b"").unwrap_err().kind, Kind::Invalid, "{key:?}");
            assert_eq!(a.get(key, SHORT).unwrap_err().kind, Kind::Invalid, "{key:?}");
        }
    });
}

#[test]
fn a_coordinator_that_is_not_there_is_named() {
    let address = "127.0.0.1:1";
    let error = tcp::Client::connect(address, &token(), SHORT).unwrap_err();
    assert_eq!(error.kind, Kind::Unreachable);
    let expected =
        format!("cannot reach the coordinator at {address} after 1 s: connection refused");
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().is_some());
}

#[test]
fn a_coordinator_may_come_later_than_its_clients() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    thread::scope(|scope| {
        let client = scope.spawn(|| tcp::Client::connect(&address.to_string(), &token(), LONG));
        let server = tcp::Server::bind(address, &token()).unwrap();
        client.join().unwrap().unwrap().set("key", b"value").unwrap();
        drop(server);
    });
}

#[test]
fn a_port_in_use_is_named() {
    let first = tcp::Server::bind(local(), &token()).unwrap();
    let error = tcp::Server::bind(first.address(), &token()).unwrap_err();
    assert_eq!(error.kind, Kind::AddressInUse);
    let expected = format!("cannot listen on {}: address already in use", first.address());
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().is_some());
}

#[test]
fn another_token_is_told_to_both_sides() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let address = server.address().to_string();
    let rank0 = tcp::Client::connect(&address, &token(), LONG).unwrap();
    let error = tcp::Client::connect(&address, &Token::new("hunter2"), LONG).unwrap_err();
    assert_eq!(error.kind, Kind::TokenMismatch);
    let expected = format!("the coordinator at {address} has another job token than this side");
    assert_eq!(error.to_string(), expected);
    let error = rank0.get("rank/1", SHORT).unwrap_err();
    assert_eq!(error.kind, Kind::TokenMismatch);
    assert!(error.to_string().ends_with("has another job token than this side"), "{error}");
}

#[test]
fn another_version_is_told_with_both_versions() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let mut newer = TcpStream::connect(server.address()).unwrap();
    newer.write_all(b"TWIR\x63\0\0\0").unwrap();
    let mut said = Vec::new();
    newer.read_to_end(&mut said).unwrap();
    assert_eq!(said, [b'T', b'W', b'I', b'R', VERSION, 1, 0, 0]);
    let address = server.address().to_string();
    let rank0 = tcp::Client::connect(&address, &token(), LONG).unwrap();
    let error = rank0.get("rank/1", SHORT).unwrap_err().to_string();
    let expected = format!("speaks protocol version 99, this side speaks version {VERSION}");
    assert!(error.ends_with(&expected), "{error}");

    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"TWIR\x63\0\0\0").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = tcp::Client::connect(&address.to_string(), &token(), LONG).unwrap_err();
    assert_eq!(error.kind, Kind::VersionMismatch);
    other.join().unwrap();
}

#[test]
fn something_else_at_the_address_is_named() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = tcp::Client::connect(&address.to_string(), &token(), LONG).unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
    assert!(error.to_string().contains("it starts with 'HTTP'"), "{error}");
    other.join().unwrap();
}

#[test]
fn strangers_do_not_disturb() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"TWIR\x03\0\0\0\xff\xff", &[0; 4000]] {
        TcpStream::connect(server.address()).unwrap().write_all(garbage).unwrap();
    }
    let client = tcp::Client::connect(&server.address().to_string(), &token(), LONG).unwrap();
    client.set("key", b"value").unwrap();
    assert_eq!(client.get("key", LONG).unwrap(), b"value");
    drop(silent);
}

/// All of an address's places are taken, for longer than the rank is ready to wait.
#[test]
fn silent_strangers_do_not_keep_a_rank_of_their_address_out() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let patience = Duration::from_secs(4);
    let client = tcp::Client::connect(&server.address().to_string(), &token(), patience).unwrap();
    let said = client.get("rank/1", SHORT).unwrap_err().to_string();
    assert!(said.contains("connections did not prove the job token, from 127.0.0.1"), "{said}");
    drop(silent);
}

/// The bytes that a client sends before it has proven anything, as recorded on the network.
fn overheard() -> Vec<u8> {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        scope.spawn(|| tcp::Client::connect(&address, &token(), SHORT));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[b'T', b'W', b'I', b'R', VERSION, 1, 0, 0]).unwrap();
        let mut said = vec![0; 8 + 2 + 48];
        stream.read_exact(&mut said).unwrap();
        said
    })
}

/// File descriptors per address that has not proven the token: 64, though it repeats what a rank said.
#[test]
fn who_repeats_a_handshake_is_a_stranger() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let said = overheard();
    let repeat = |_| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&said).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // The server's preamble and handshake message: it was taken in.
        stream.read_exact(&mut [0; 8 + 2 + 48]).map(|()| stream)
    };
    let mut streams: Vec<_> = (0..200).map(repeat).collect::<Result<_, _>>().unwrap();
    for stream in &mut streams[..136] {
        let ended = stream.read(&mut [0]);
        assert!(matches!(ended, Ok(0)) || ended.unwrap_err().kind() == ErrorKind::ConnectionReset);
    }
    let client = tcp::Client::connect(&server.address().to_string(), &token(), LONG).unwrap();
    client.set("key", b"value").unwrap();
}

#[test]
fn a_store_has_a_limit_of_bytes() {
    let store = mem::Mem::new();
    let value = vec![7; VALUE_BYTES_MAX];
    let fill = |number: usize| store.set(&format!("key/{number}"), &value);
    let full = (0..STORE_BYTES_MAX / VALUE_BYTES_MAX + 1).find_map(|number| fill(number).err());
    let error = full.unwrap();
    assert_eq!(error.kind, Kind::Limit);
    assert!(error.to_string().starts_with("the store is full: 335"), "{error}");
    store.set("key/0", &value).unwrap();
    store.set("small", b"").unwrap();
}

#[test]
fn a_coordinator_that_goes_is_noticed() {
    let server = tcp::Server::bind(local(), &token()).unwrap();
    let client = tcp::Client::connect(&server.address().to_string(), &token(), LONG).unwrap();
    drop(server);
    assert_eq!(client.get("key", LONG).unwrap_err().kind, Kind::Unreachable);
}
