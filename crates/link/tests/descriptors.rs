//! A process that has no file descriptor left continues: accepting ends no job.

mod ports;

use std::fs::File;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ports::{LONG, options};
use socket2::{Domain, Socket, Type};
use thinwire_link::store::{self, Store};
use thinwire_link::tcp::{Connections, Options, connect};
use thinwire_link::{Kind, log_warnings_by};
use thinwire_wire::{Hint, World};

const LIMIT: usize = 64;

/// The variable that tells a copy of this program that it is one, and where to meet.
const ALONE: &str = "THINWIRE_TEST_ALONE";

/// The command that runs `test` of this file again in a process of its own with few file descriptors.
fn limited(test: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -n {LIMIT} && exec \"$0\" --exact \"$1\"")])
        .arg(std::env::current_exe().unwrap())
        .arg(test);
    command
}

/// Runs `test` of this file again, unless this is the run of its own.
fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let run = limited(test).env(ALONE, "1").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    false
}

/// Opens files until there is no descriptor left.
fn exhaust() -> Vec<File> {
    (0..LIMIT).map_while(|_| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_mesh_without_file_descriptors_waits_until_its_deadline() {
    if !alone("a_mesh_without_file_descriptors_waits_until_its_deadline") {
        return;
    }
    let store = store::mem::Mem::new();
    let options = Options { timeout: Duration::from_secs(5), ..options() };
    let error = thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &options));
        let value = String::from_utf8(store.get("epoch/0/rank/0", LONG).unwrap()).unwrap();
        let address: std::net::SocketAddr = value.split(' ').nth(1).unwrap().parse().unwrap();
        let stranger = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let files = exhaust();
        stranger.connect(&address.into()).unwrap();
        store.set("epoch/0/rank/1", b"2 127.0.0.1:9 0").unwrap();
        let error = zero.join().unwrap().map(|_| ()).unwrap_err();
        drop((files, stranger));
        error
    });
    let missing = "could not connect to rank 1 of 2 within 5 s";
    let refused = "this rank could not accept a connection: too many open files";
    assert_eq!((error.kind, error.to_string()), (Kind::Timeout, format!("{missing}; {refused}")));
}

/// Rank 0 has descriptors for fewer connections than rank 1, which connects, was told to make.
#[test]
fn the_rank_with_fewer_descriptors_decides_how_many_connections_there_are() {
    let (test, token) =
        ("the_rank_with_fewer_descriptors_decides_how_many_connections_there_are", options().token);
    let meet = |rank: u32, address: &str, connections| {
        let store = store::tcp::Client::connect(address, &token, LONG).unwrap();
        let timeout = Duration::from_secs(30);
        let options = Options { connections, timeout, ..options() };
        connect(World::new(rank, 2).unwrap(), &store, &options).unwrap().finish(LONG).unwrap();
    };
    if let Ok(address) = std::env::var(ALONE) {
        return meet(0, &address, Connections::default());
    }
    let server = store::tcp::Server::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let address = server.address().to_string();
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    log_warnings_by(|text| WARNED.lock().unwrap().push(text));
    let mut zero = limited(test).env(ALONE, &address).spawn().unwrap();
    meet(1, &address, Connections::Exactly(LIMIT as u16));
    assert!(zero.wait().unwrap().success());
    let warned = WARNED.lock().unwrap();
    let fewer = format!("not {LIMIT}: one of the two has too few file descriptors");
    let of_both = "rank 1 and rank 0 can open only ";
    assert!(warned.iter().any(|it| it.starts_with(of_both) && it.contains(&fewer)), "{warned:?}");
}

/// The kernel delivers a passed connection without its descriptor, which is no stranger's doing.
#[cfg(target_os = "linux")]
#[test]
fn a_mesh_behind_a_shared_port_without_file_descriptors_says_so() {
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketType, sendmsg_addr, socket,
    };
    use std::os::fd::AsFd;

    if !alone("a_mesh_behind_a_shared_port_without_file_descriptors_says_so") {
        return;
    }
    let store = store::mem::Mem::new();
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    drop(stranger);
    let options = Options { timeout: Duration::from_secs(5), port: Some(port), ..options() };
    let error = thread::scope(|scope| {
        let zero = scope.spawn(|| connect(World::new(0, 2).unwrap(), &store, &options));
        let value = String::from_utf8(store.get("epoch/0/rank/0", LONG).unwrap()).unwrap();
        let (_, key) = value.split(' ').nth(1).unwrap().split_once('#').unwrap();
        let name = format!("thinwire-port-{}-{key}", thinwire_wire::VERSION);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let router = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let files = exhaust();
        let passed = [files[0].as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        let parts = [std::io::IoSlice::new(&[0])];
        sendmsg_addr(&router, &name, &parts, &mut control, SendFlags::empty()).unwrap();
        store.set("epoch/0/rank/1", b"2 127.0.0.1:9 0").unwrap();
        let error = zero.join().unwrap().map(|_| ()).unwrap_err();
        drop(files);
        error
    });
    let missing = "could not connect to rank 1 of 2 within 5 s";
    let refused = "this rank could not accept a connection: too many open files";
    assert_eq!((error.kind, error.to_string()), (Kind::Timeout, format!("{missing}; {refused}")));
    assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -n")));
}

#[test]
fn a_store_without_file_descriptors_goes_on() {
    if !alone("a_store_without_file_descriptors_goes_on") {
        return;
    }
    let address = "127.0.0.1:0".parse().unwrap();
    let token = thinwire_link::Token::new("descriptors");
    let server = store::tcp::Server::bind(address, &token).unwrap();
    let address = server.address().to_string();
    let first = store::tcp::Client::connect(&address, &token, LONG).unwrap();
    let stranger = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let files = exhaust();
    stranger.connect(&server.address().into()).unwrap();
    first.set("key", b"value").unwrap();
    drop(files);
    let second = store::tcp::Client::connect(&address, &token, LONG).unwrap();
    assert_eq!(second.get("key", LONG).unwrap(), b"value");
}
