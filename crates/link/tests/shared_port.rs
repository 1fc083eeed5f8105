//! One port for all ranks of a host: who connects reaches the rank that it names or is refused, strangers hold up
//! nobody, and no process behind the port needs another one.
#![cfg(target_os = "linux")]

mod ports;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ports::{LONG, Post, connect_all, options, shared, tag};
use rustix::process::{Pid, Signal, kill_process};
use thinwire_link::store::{self, Store};
use thinwire_link::tcp::{Options, Unreachable, connect};
use thinwire_link::{Kind, Link};
use thinwire_wire::{Hint, Rank, VERSION, World};

/// A port that nobody has now.
fn free_port(host: &str) -> u16 {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port()
}

fn behind(port: u16) -> Options {
    Options { port: Some(port), ..options() }
}

/// Links that are made, and that keep their port open.
fn keeping(port: u16) -> Options {
    Options { unreachable: Some(Unreachable::new(|_| ())), ..behind(port) }
}

fn meet(size: u32, options: &Options) -> Vec<Link> {
    let ranks = connect_all(size, &store::mem::Mem::new(), |_| options.clone());
    ranks.into_iter().map(Result::unwrap).collect()
}

/// Sends a message from rank 1 to rank 0, and back.
fn talk(links: &mut [Link], message: u32) {
    let mut posts = [Post::default(), Post::default()];
    thread::scope(|scope| {
        for (link, post) in links.iter_mut().zip(&mut posts) {
            scope.spawn(move || {
                post.send(link, Rank(1 - link.world().rank().0), tag(message), 100_000);
                post.drive(link, |post| post.received.len() == 1 && post.outgoing.is_empty())
                    .unwrap();
            });
        }
    });
}

/// The address that a rank has left in the store, and the key behind it.
fn published(store: &dyn Store, rank: u32) -> (SocketAddr, String) {
    let value = store.get(&format!("epoch/0/rank/{rank}"), LONG).unwrap();
    let value = String::from_utf8(value).unwrap();
    let (address, key) = value.split(' ').nth(1).unwrap().split_once('#').unwrap();
    (address.parse().unwrap(), key.to_owned())
}

fn preface(key: &str) -> Vec<u8> {
    let digits = (0..32).step_by(2);
    let key = digits.map(|at| u8::from_str_radix(&key[at..at + 2], 16).unwrap());
    [b"TWPT".as_slice(), &[VERSION, 0, 0, 0]].concat().into_iter().chain(key).collect()
}

/// What comes back on a connection that has sent these bytes, until its end.
fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // What was not read when the connection was closed resets it.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn all_ranks_are_behind_one_port_with_keys_of_their_own() {
    for (host, bind) in [("127.0.0.1", [127, 0, 0, 1].into()), ("::1", "::1".parse().unwrap())] {
        let (port, store) = (free_port(host), store::mem::Mem::new());
        let options = Options { bind, port: Some(port), ..shared() };
        let ranks = connect_all(4, &store, |_| options.clone());
        let links: Vec<Link> = ranks.into_iter().map(Result::unwrap).collect();
        let mut keys: Vec<_> = (0..4).map(|rank| published(&store, rank)).collect();
        assert!(keys.iter().all(|(address, _)| *address == SocketAddr::new(bind, port)));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 4);
        assert!(links[0].shares_memory(Rank(3)));
    }
}

#[test]
fn two_jobs_meet_behind_one_port_at_one_time() {
    let options = behind(free_port("127.0.0.1"));
    thread::scope(|scope| {
        let jobs: Vec<_> = (0..2).map(|_| scope.spawn(|| meet(3, &options))).collect();
        for job in jobs {
            talk(&mut job.join().unwrap()[..2], 0);
        }
    });
}

#[test]
fn a_rank_that_waits_for_another_does_not_hold_up_another_job() {
    let options = behind(free_port("127.0.0.1"));
    let (waiting, cancel) = (store::mem::Mem::new(), thinwire_link::tcp::Cancel::new());
    let cancelled = Options { cancel: Some(cancel.clone()), ..options.clone() };
    thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &waiting, &cancelled));
        published(&waiting, 0);
        meet(3, &options);
        cancel.cancel();
        assert_eq!(zero.join().unwrap().unwrap_err().kind, Kind::Cancelled);
    });
}

/// Law: a connection arrives at the listener whose key it has sent, or is refused.
#[test]
fn who_names_nobody_is_refused_and_who_names_a_rank_is_welcomed_by_it() {
    let (port, store) = (free_port("127.0.0.1"), store::mem::Mem::new());
    let short = Options { timeout: Duration::from_secs(3), ..behind(port) };
    thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &short));
        let (address, key) = published(&store, 0);
        assert_eq!(answer(address, &preface(&"0".repeat(32))), [1]);
        store.set("epoch/0/rank/1", b"2 127.0.0.1:9 0").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&preface(&key)).unwrap();
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..6], [b"\0TWIR".as_slice(), &[VERSION]].concat());
        assert_eq!(zero.join().unwrap().unwrap_err().kind, Kind::Timeout);
    });
    let store = store::mem::Mem::new();
    let keeper = meet(2, &keeping(port));
    let nobody = format!("2 127.0.0.1:{port}#{} 0", "1f".repeat(16));
    store.set("epoch/0/rank/0", nobody.as_bytes()).unwrap();
    let error = connect(World::new(1, 2).unwrap(), &store, &short).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "could not connect to rank 0 of 2 within 3 s; rank 0 at 127.0.0.1:{port}: nobody behind this port has the key that was published"
        )
    );
    drop(keeper);
}

#[test]
fn another_version_behind_a_port_is_named_on_both_sides() {
    let (port, store) = (free_port("127.0.0.1"), store::mem::Mem::new());
    let _keeper = meet(2, &keeping(port));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut later = preface(&"0".repeat(32));
    later[4] = VERSION + 1;
    assert_eq!(answer(address, &later), [0x80 | VERSION]);
    // A port of a later version.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let entry = format!("2 {address}#{} 0", "1f".repeat(16));
    store.set("epoch/0/rank/0", entry.as_bytes()).unwrap();
    let answers = thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        stream.write_all(&[0x80 | (VERSION + 1)]).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let error = connect(World::new(1, 2).unwrap(), &store, &behind(port)).unwrap_err();
    let (theirs, mine) = (VERSION + 1, VERSION);
    let said = format!(
        "rank 0 at {address} speaks protocol version {theirs}, this side speaks version {mine}"
    );
    assert_eq!((error.kind, error.to_string()), (Kind::VersionMismatch, said));
    answers.join().unwrap();
}

/// A process holds the port's name, and answers nobody.
#[test]
fn who_waits_for_a_shared_port_can_be_cancelled() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as Name, UnixListener};

    let (port, store) = (free_port("127.0.0.1"), store::mem::Mem::new());
    let name = format!("thinwire-port-{VERSION}-127.0.0.1:{port}");
    let name = Name::from_abstract_name(name.as_bytes()).unwrap();
    let silent = UnixListener::bind_addr(&name).unwrap();
    let cancel = thinwire_link::tcp::Cancel::new();
    let options = Options { cancel: Some(cancel.clone()), ..behind(port) };
    thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &options));
        let asked = silent.accept().unwrap();
        cancel.cancel();
        let error = zero.join().unwrap().unwrap_err();
        let said = format!("cancelled while joining port {port} of 127.0.0.1");
        assert_eq!((error.kind, error.to_string()), (Kind::Cancelled, said));
        drop(asked);
    });
}

/// Law: what strangers send, or do not send, holds up nobody and reaches no rank.
#[test]
fn strangers_hold_up_nobody() {
    let port = free_port("127.0.0.1");
    let _keeper = meet(2, &keeping(port));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let half = &preface(&"0".repeat(32))[..20];
    let strangers: Vec<_> = (0..600)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Of three one says nothing, one something, and one half of what is expected.
            let _ = stream.write_all([b"", &half[..3], half][number % 3]);
            stream
        })
        .collect();
    for bytes in [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".as_slice(), &[0; 24], &[b'T'; 100]] {
        assert!(answer(address, bytes).is_empty());
    }
    let start = Instant::now();
    talk(&mut meet(2, &Options { timeout: Duration::from_secs(30), ..behind(port) }), 0);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // All of them are gone in bounded time.
    for mut stream in strangers {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let end = stream.read(&mut [0; 8]);
        assert!(!matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
        assert_eq!(end.unwrap_or(0), 0);
    }
}

#[test]
fn a_port_that_another_program_has_is_an_error_with_a_hint() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let start = Instant::now();
    for result in connect_all(2, &store::mem::Mem::new(), |_| behind(port)) {
        let error = result.unwrap_err();
        let expected = format!(
            "port {port} of 127.0.0.1 is in use by another program, expected a port that is free or shared by thinwire"
        );
        assert_eq!((error.kind, error.to_string()), (Kind::AddressInUse, expected));
        assert!(error.hint().is_some_and(|hint| hint.contains("another port")));
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_port_that_nobody_shares_any_more_is_free() {
    let port = free_port("127.0.0.1");
    drop(meet(3, &behind(port)));
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
        assert!(Instant::now() < deadline, "{error}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn stores_behind_one_port_are_told_apart_by_their_keys() {
    let address: SocketAddr = format!("127.0.0.1:{}", free_port("127.0.0.1")).parse().unwrap();
    let token = options().token;
    let servers = [(); 2].map(|()| store::tcp::Server::share(address, &token).unwrap());
    for (server, value) in servers.iter().zip([b"a", b"b"]) {
        assert_eq!(server.address(), address);
        let client = store::tcp::Client::connect(&server.shared_address(), &token, LONG).unwrap();
        client.set("key", value).unwrap();
        let name = server.shared_address().replace("127.0.0.1", "localhost");
        let client = store::tcp::Client::connect(&name, &token, LONG).unwrap();
        assert_eq!(client.get("key", LONG).unwrap(), value);
    }
    let nobody = format!("{address}#{}", "1f".repeat(16));
    let second = Duration::from_secs(1);
    let error = store::tcp::Client::connect(&nobody, &token, second).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach the coordinator at {address} after 1 s: nobody behind this port has the key that was published"
        )
    );
}

const CHILD: &str = "THINWIRE_TEST_PORT";

/// A process that has two ranks behind the port, and keeps it open.
struct Process {
    child: Child,
    _stdin: ChildStdin,
}

impl Process {
    /// Returns when its ranks have met.
    fn start(port: u16) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_behind_a_port", "--nocapture"])
            .env(CHILD, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("has met")), "the process has ended");
        Process { child, _stdin: stdin }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// No test, but what [`Process`] runs.
#[test]
fn process_behind_a_port() {
    let Ok(port) = std::env::var(CHILD) else { return };
    let _links = meet(2, &keeping(port.parse().unwrap()));
    println!("has met");
    // Until the other process ends.
    let _ = std::io::stdin().read(&mut [0]);
}

/// The kernel names the real user of who passes a connection on, and the effective one of who connects.
#[test]
fn ranks_with_another_effective_user_meet_behind_a_port() {
    // Another user is root's to choose.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let run = Command::new("setpriv")
        .args(["--euid", "65534", "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "two_jobs_meet_behind_one_port_at_one_time"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// Law: the end of a process ends neither the links of others behind its port nor their later meetings.
#[test]
fn the_process_that_has_opened_the_port_may_be_killed() {
    let port = free_port("127.0.0.1");
    let first = Process::start(port);
    let mut links = meet(2, &behind(port));
    let keeper = Process::start(port);
    first.kill();
    talk(&mut links, 0);
    talk(&mut meet(2, &behind(port)), 0);
    let third = Process::start(port);
    keeper.kill();
    third.kill();
    // Nobody is behind the port any more, and the next one opens it.
    talk(&mut links, 1);
    talk(&mut meet(2, &behind(port)), 0);
}

#[test]
fn processes_that_are_killed_while_others_meet_are_not_missed() {
    let port = free_port("127.0.0.1");
    for _ in 0..4 {
        let victim = Process::start(port);
        thread::scope(|scope| {
            let meeting = scope.spawn(|| meet(8, &behind(port)));
            victim.kill();
            talk(&mut meeting.join().unwrap()[..2], 0);
        });
    }
}

/// A process that is stopped is behind the port like any other, and does nothing.
#[test]
fn a_process_that_is_stopped_holds_up_nobody() {
    let port = free_port("127.0.0.1");
    let [first, second] = [Process::start(port), Process::start(port)];
    first.signal(Signal::STOP);
    talk(&mut meet(4, &behind(port))[..2], 0);
    Process::start(port).kill();
    first.signal(Signal::CONT);
    first.kill();
    second.kill();
}
