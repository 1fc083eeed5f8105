//! Who is lost, who is poisoned, and that every survivor names the same rank.

mod ports;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ports::{LONG, Post, every_link, options, tag, tcp_mesh};
use thinwire_link::tcp::{Encryption, Options, Unreachable};
use thinwire_link::{Error, Kind, Link};
use thinwire_wire::{HEADER_BYTES, Rank};

/// Drives a link that expects nothing until it fails.
fn fails(link: &mut Link) -> Error {
    Post::default().drive(link, |_| false).unwrap_err()
}

#[test]
fn a_dropped_link_is_a_lost_rank_to_everybody() {
    for (name, mut links) in every_link(3) {
        drop(links.remove(1));
        for mut link in links {
            let error = fails(&mut link);
            assert_eq!(
                (error.kind, error.rank),
                (Kind::PeerLost, Some(Rank(1))),
                "{name}: {error}"
            );
            assert!(link.progress(&mut Post::default()).is_err(), "{name}: the link stays dead");
            // The others must not see this one go before they have seen the first.
            std::mem::forget(link);
        }
    }
}

#[test]
fn a_rank_that_is_lost_in_the_middle_of_a_message_is_lost() {
    for (name, mut links) in every_link(2) {
        let (mut link, mut dying) = (links.remove(0), links.remove(0));
        let mut post = Post::default();
        post.send(&mut dying, Rank(0), tag(0), 64 << 20);
        let deadline = Instant::now() + LONG;
        while dying.counters().sent_bytes < 100_000 {
            assert!(Instant::now() < deadline, "{name}");
            dying.progress(&mut post).unwrap();
        }
        drop(dying);
        let error = fails(&mut link);
        assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))), "{name}: {error}");
    }
}

/// Rank 3 dies; whoever notices poisons the others and goes at once.
#[test]
fn every_survivor_names_the_original_lost_rank() {
    for round in 0..8 {
        for (name, mut links) in every_link(4) {
            let dying = links.pop().unwrap();
            let survivors: Vec<_> = links
                .into_iter()
                .map(|mut link| {
                    thread::spawn(move || {
                        let peer = Rank((link.world().rank().0 + 1) % 3);
                        let mut post = Post::default();
                        post.send(&mut link, peer, tag(0), 3 << 20);
                        let error = post.drive(&mut link, |_| false).unwrap_err();
                        link.poison(&error);
                        error
                    })
                })
                .collect();
            drop(dying);
            for survivor in survivors {
                let error = survivor.join().unwrap();
                assert_eq!(error.rank, Some(Rank(3)), "{name}, round {round}: {error}");
            }
        }
    }
}

#[test]
fn poison_overtakes_data_that_has_no_place_yet() {
    for (name, mut links) in every_link(2) {
        let (mut link, mut poisoner) = (links.remove(0), links.remove(0));
        let mut post = Post::default();
        for message in 0..8 {
            post.send(&mut poisoner, Rank(0), tag(message), 8 << 20);
        }
        while poisoner.progress(&mut post).unwrap() {}
        let reason = Error::lost(Rank(7), "gone");
        let poisoner = thread::spawn(move || poisoner.poison(&reason));
        let mut never = Post { later: 256, ..Post::default() };
        let error = never.drive(&mut link, |_| false).unwrap_err();
        assert_eq!(error.kind, Kind::Poisoned { by: Rank(1) }, "{name}");
        assert_eq!(error.rank, Some(Rank(7)), "{name}");
        assert_eq!(error.to_string(), "rank 1 reports: lost rank 7: gone", "{name}");
        drop(link);
        poisoner.join().unwrap();
    }
}

/// Silence of a peer that is lost for it.
const SILENCE: Duration = Duration::from_millis(200);
/// Silence of a thread that lives is shorter, on a machine that is busy with something else.
const STARVATION: Duration = Duration::from_secs(4);

fn heartbeats(timeout: Duration) -> Options {
    Options { heartbeat_timeout: Some(timeout), ..options() }
}

#[test]
fn a_silent_peer_is_lost() {
    for encryption in [Encryption::Never, Encryption::Always] {
        let mut links = tcp_mesh(2, &Options { encryption, ..heartbeats(SILENCE) });
        let (resume, paused) = mpsc::channel::<()>();
        let silent = links.pop().unwrap();
        let holder = thread::spawn(move || {
            let _ = paused.recv();
            drop(silent);
        });
        let error = fails(&mut links[0]);
        assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))));
        assert!(error.to_string().starts_with("lost rank 1: silent for "), "{error}");
        drop(resume);
        holder.join().unwrap();
    }
}

/// A cut network parts a rank from several at once, and its error names the first of them.
#[test]
fn who_listens_hears_of_all_ranks_that_are_silent_and_of_no_other() {
    let (sender, heard) = mpsc::channel::<Vec<Rank>>();
    let unreachable = Unreachable::new(move |ranks| sender.send(ranks.to_vec()).unwrap());
    let options = Options { unreachable: Some(unreachable), ..heartbeats(Duration::from_secs(1)) };
    let mut links = tcp_mesh(4, &options);
    let [_silent, _other] = [links.pop().unwrap(), links.pop().unwrap()];
    // Either of the two may be told by the other first, and misses the same ranks.
    let both = links.into_iter().map(|mut link| {
        thread::spawn(move || {
            let error = fails(&mut link);
            link.poison(&error);
            error.rank
        })
    });
    for blamed in both.collect::<Vec<_>>() {
        assert!(blamed.join().unwrap() >= Some(Rank(2)));
    }
    for _ in 0..2 {
        assert_eq!(heard.recv_timeout(LONG).unwrap(), [Rank(2), Rank(3)]);
    }
}

#[test]
fn an_idle_peer_with_a_heartbeat_is_not_lost() {
    let idle = |mut link: Link| {
        // As long as two of them would be lost without.
        let (begun, few) = (Instant::now(), 2 * 2 * HEADER_BYTES as u64);
        while begun.elapsed() < STARVATION + STARVATION / 2 || link.counters().received_bytes < few
        {
            assert!(begun.elapsed() < LONG);
            link.progress(&mut Post::default()).unwrap();
            link.wait(Duration::from_millis(100)).unwrap();
        }
        link.finish(LONG).unwrap();
    };
    let both = [Encryption::Never, Encryption::Always]
        .map(|encryption| tcp_mesh(3, &Options { encryption, ..heartbeats(STARVATION) }));
    thread::scope(|scope| {
        both.into_iter().flatten().for_each(|link| drop(scope.spawn(|| idle(link))))
    });
}

#[test]
fn a_rank_that_only_receives_is_heard() {
    for encryption in [Encryption::Never, Encryption::Always] {
        // Slow, so that it costs little.
        let limit = Some("100mbit".parse().unwrap());
        let options = Options { encryption, limit, ..heartbeats(STARVATION) };
        let mut links = tcp_mesh(2, &options);
        let (mut link, mut sender) = (links.remove(0), links.remove(0));
        let start = Instant::now();
        let enough = move |_: &Post| start.elapsed() > STARVATION + STARVATION / 2;
        let sender = thread::spawn(move || {
            let mut post = Post::default();
            for message in 0.. {
                post.send(&mut sender, Rank(0), tag(message), 100_000);
                post.drive(&mut sender, |post| post.outgoing.is_empty()).unwrap();
                if enough(&post) {
                    break;
                }
            }
            sender.finish(LONG).unwrap();
        });
        // Until the sender has left: it must not find that this rank has.
        let mut post = Post::default();
        while !link.has_left(Rank(1)) {
            assert!(start.elapsed() < LONG);
            if !link.progress(&mut post).unwrap() {
                link.wait(Duration::from_millis(10)).unwrap();
            }
        }
        link.finish(LONG).unwrap();
        sender.join().unwrap();
    }
}

#[test]
fn a_rank_that_says_goodbye_is_not_lost() {
    for (name, mut links) in every_link(2) {
        let (mut link, mut leaver) = (links.remove(0), links.remove(0));
        let mut post = Post::default();
        post.send(&mut leaver, Rank(0), tag(0), 1 << 20);
        let leaver = thread::spawn(move || {
            post.drive(&mut leaver, |post| post.outgoing.is_empty()).unwrap();
            leaver.finish(LONG)
        });
        let mut post = Post::default();
        let deadline = Instant::now() + LONG;
        while !link.has_left(Rank(1)) {
            assert!(Instant::now() < deadline, "{name}");
            if !link.progress(&mut post).unwrap() {
                link.wait(Duration::from_millis(10)).unwrap();
            }
        }
        assert_eq!(post.received.len(), 1, "{name}: everything came before the goodbye");
        link.finish(LONG).unwrap();
        leaver.join().unwrap().unwrap();
    }
}

#[test]
fn data_for_a_rank_that_has_left_is_an_error() {
    for (name, mut links) in every_link(2) {
        let (mut link, mut leaver) = (links.remove(0), links.remove(0));
        let leaver = thread::spawn(move || leaver.finish(LONG));
        let mut post = Post::default();
        post.send(&mut link, Rank(1), tag(0), 64 << 20);
        let error = post.drive(&mut link, |_| false).unwrap_err();
        assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))), "{name}: {error}");
        drop(link);
        leaver.join().unwrap().unwrap();
    }
}

#[test]
fn a_waker_ends_the_wait_in_progress_or_the_next_one() {
    for (name, mut links) in every_link(2) {
        let link = &mut links[0];
        let waker = link.waker();
        let start = Instant::now();
        waker.wake();
        waker.wake();
        // Progress in between must not eat the call.
        while link.progress(&mut Post::default()).unwrap() {}
        link.wait(LONG).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            link.wait(LONG).unwrap();
        });
        assert!(start.elapsed() < LONG / 2, "{name}");
    }
}

#[test]
fn nobody_can_finish_with_frames_in_the_queue() {
    for (name, mut links) in every_link(2) {
        let mut post = Post::default();
        post.send(&mut links[0], Rank(1), tag(0), 1000);
        assert_eq!(links[0].finish(LONG).unwrap_err().kind, Kind::Invalid, "{name}");
    }
}
