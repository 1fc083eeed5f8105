//! Shared memory between processes: who uses it, and what becomes of it when one of them is killed.
#![cfg(target_os = "linux")]

mod ports;

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ports::{LONG, Post, connect_all, options, shared, tag, tcp_mesh};
use thinwire_link::store;
use thinwire_link::tcp::{Encryption, Options, SharedMemory, connect};
use thinwire_link::{Kind, Link, Token};
use thinwire_wire::{Rank, World};

/// The variable that tells a copy of this program where to meet.
const STORE: &str = "THINWIRE_TEST_STORE";
/// Bytes of one message, more than rings hold.
const LENGTH: usize = 16 << 20;

/// Rank 1 of 2 in a process of its own: `test` of this file, run again.
fn start(test: &str, server: &store::tcp::Server) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(STORE, server.address().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn server() -> store::tcp::Server {
    store::tcp::Server::bind("127.0.0.1:0".parse().unwrap(), &Token::new("test")).unwrap()
}

fn meet(rank: u32, address: &str, options: &Options) -> Link {
    let store = store::tcp::Client::connect(address, &Token::new("test"), LONG).unwrap();
    connect(World::new(rank, 2).unwrap(), &store, options).unwrap()
}

/// Sends without end.
fn send_all(mut link: Link) {
    let mut post = Post::default();
    for message in 0.. {
        post.send(&mut link, Rank(0), tag(message), LENGTH);
        if post.drive(&mut link, |post| post.outgoing.is_empty()).is_err() {
            return;
        }
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_message_is_lost_within_milliseconds() {
    let test = "a_process_that_is_killed_in_the_middle_of_a_message_is_lost_within_milliseconds";
    if let Ok(address) = std::env::var(STORE) {
        return send_all(meet(1, &address, &shared()));
    }
    let mut quickest = Duration::MAX;
    for round in 0..5u64 {
        let server = server();
        let mut child = start(test, &server);
        let mut link = meet(0, &server.address().to_string(), &shared());
        assert!(link.shares_memory(Rank(1)));
        // Another place in a message each time.
        let enough = (round + 1) * 7_654_321;
        let mut post = Post::default();
        while link.counters().received_bytes < enough {
            if !link.progress(&mut post).unwrap() {
                link.wait(LONG).unwrap();
            }
        }
        child.kill().unwrap();
        let killed = Instant::now();
        let error = post.drive(&mut link, |_| false).unwrap_err();
        quickest = quickest.min(killed.elapsed());
        assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))), "{error}");
        child.wait().unwrap();
    }
    // The quickest, since this machine may do something else for some time.
    assert!(quickest < Duration::from_millis(100), "noticed after {quickest:?}");
}

/// A sender that sleeps because the ring is full is woken by the end of the reader, too.
#[test]
fn a_process_that_reads_nothing_and_is_killed_is_lost() {
    let test = "a_process_that_reads_nothing_and_is_killed_is_lost";
    if let Ok(address) = std::env::var(STORE) {
        let _link = meet(1, &address, &shared());
        thread::sleep(LONG);
        return;
    }
    let server = server();
    let mut child = start(test, &server);
    let mut link = meet(0, &server.address().to_string(), &shared());
    let mut post = Post::default();
    post.send(&mut link, Rank(1), tag(0), LENGTH);
    let mut last = u64::MAX;
    while std::mem::replace(&mut last, link.counters().sent_bytes) != last {
        while link.progress(&mut post).unwrap() {}
        link.wait(Duration::from_millis(50)).unwrap();
    }
    assert!(last < LENGTH as u64);
    child.kill().unwrap();
    let error = post.drive(&mut link, |_| false).unwrap_err();
    assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))), "{error}");
    child.wait().unwrap();
}

/// Whether two ranks with these options share memory, which both see alike.
fn shares(options: [Options; 2]) -> bool {
    let store = store::mem::Mem::new();
    let links = connect_all(2, &store, |rank| options[rank as usize].clone());
    let links: Vec<Link> = links.into_iter().map(Result::unwrap).collect();
    let [zero, one] = [links[0].shares_memory(Rank(1)), links[1].shares_memory(Rank(0))];
    assert_eq!(zero, one);
    let ranks = links.into_iter().map(|mut link| {
        thread::spawn(move || {
            let (mut post, peer) = (Post::default(), link.world().after(1));
            post.send(&mut link, peer, tag(0), 3 << 20);
            post.drive(&mut link, |post| post.outgoing.is_empty() && post.received.len() == 1)?;
            link.finish(LONG)
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.join().unwrap().unwrap();
    }
    zero
}

#[test]
fn both_ranks_share_memory_or_neither_does() {
    let sealed = Options { encryption: Encryption::Always, ..shared() };
    let clear = Options { encryption: Encryption::Never, ..shared() };
    assert!(shares([shared(), shared()]));
    assert!(shares([shared(), clear.clone()]));
    for other in [options(), sealed] {
        assert!(!shares([shared(), other.clone()]));
        assert!(!shares([other.clone(), clear.clone()]));
        assert!(!shares([other.clone(), other]));
    }
    assert_eq!(Options::new(Token::new("t")).shared_memory, SharedMemory::Auto);
}

#[test]
fn ranks_at_other_addresses_of_loopback_share_memory() {
    let at = |last| Options { bind: [127, 0, 0, last].into(), ..shared() };
    assert!(shares([at(1), at(2)]));
}

#[test]
fn what_does_not_fit_in_the_rings_waits_for_its_reader() {
    let mut links = tcp_mesh(2, &shared());
    let (mut sender, mut receiver) = (links.pop().unwrap(), links.pop().unwrap());
    let (mut outbox, mut inbox) = (Post::default(), Post::default());
    outbox.send(&mut sender, Rank(0), tag(0), LENGTH);
    while sender.progress(&mut outbox).unwrap() {}
    let sent = sender.counters().sent_bytes;
    assert!(sent > 0 && sent < LENGTH as u64 / 2, "{sent}");
    let sending = thread::spawn(move || {
        outbox.drive(&mut sender, |post| post.outgoing.is_empty()).unwrap();
        sender.finish(LONG)
    });
    inbox.drive(&mut receiver, |post| post.received.len() == 1).unwrap();
    receiver.finish(LONG).unwrap();
    sending.join().unwrap().unwrap();
}
