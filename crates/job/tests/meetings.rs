//! Ranks that meet: as threads, each with its own meeting, over loopback.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use thinwire_job::{Error, Form, Host, Kind, Meeting, Place, Settings, Source, decline, open};
use thinwire_link::store::Store;
use thinwire_link::store::tcp::Client;
use thinwire_link::tcp::Watch;
use thinwire_link::{self as link, Link, Port, Token};
use thinwire_wire::{Header, Hint, Kind as Frame, Rank, Tag};

/// What no test should ever take.
const LONG: Duration = Duration::from_secs(300);

fn place(rank: u32, world: u32, coordinator: &str, host: Host) -> Place {
    let coordinator = coordinator.to_owned();
    Place { rank, world, coordinator, host, ..Place::alone(Form::Arguments) }
}

fn meet(rank: u32, world: u32, coordinator: &str, host: Host) -> Result<Meeting, Error> {
    let settings = Settings { timeout: LONG, ..Settings::default() };
    Meeting::new(&place(rank, world, coordinator, host), "secret", &settings)
}

/// Sends a word to the next rank and receives that of the one before.
struct Letters {
    sent: Vec<u8>,
    received: Vec<u8>,
    arrived: bool,
}

impl Port for Letters {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.sent
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {}

    fn incoming(&mut self, _: Rank, header: &Header) -> Result<link::Place<'_>, link::Error> {
        self.received.resize(header.length as usize, 0);
        Ok(link::Place::Here(&mut self.received))
    }

    fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), link::Error> {
        self.arrived = true;
        Ok(())
    }
}

fn pass_on(mut link: Link, word: &str) -> String {
    let tag = Tag { step: 0, tensor: 0, message: 0 };
    let mut letters =
        Letters { sent: word.as_bytes().to_vec(), received: Vec::new(), arrived: false };
    link.send(link.world().after(1), Header::new(Frame::Data, 0, tag, word.len()));
    while !letters.arrived {
        if !link.progress(&mut letters).unwrap() {
            link.wait(LONG).unwrap();
        }
    }
    link.finish(LONG).unwrap();
    String::from_utf8(letters.received).unwrap()
}

/// Runs every rank of a world in a thread of its own, at a store that outlives them.
fn world(size: u32, rank: impl Fn(Meeting) + Sync) {
    let (_store, coordinator) = open("127.0.0.1", 0, "secret").unwrap();
    thread::scope(|scope| {
        for number in 0..size {
            let (rank, coordinator) = (&rank, &coordinator);
            scope.spawn(move || rank(meet(number, size, coordinator, Host::Launcher).unwrap()));
        }
    });
}

/// An address of this host where nothing listens.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_rank_that_is_alone_needs_nobody() {
    let meeting = meet(0, 1, "nowhere:1", Host::RankZero).unwrap();
    assert!(meeting.store().is_none());
    meeting.link().unwrap().finish(LONG).unwrap();
    meeting.link_named("any").unwrap().finish(LONG).unwrap();
}

#[test]
fn rank_zero_hosts_the_others() {
    let coordinator = free();
    thread::scope(|scope| {
        for rank in 0..3 {
            let coordinator = &coordinator;
            scope.spawn(move || {
                let meeting = meet(rank, 3, coordinator, Host::RankZero).unwrap();
                for turn in 0..2 {
                    let word = format!("{turn} {rank}");
                    let before = (rank + 2) % 3;
                    assert_eq!(pass_on(meeting.link().unwrap(), &word), format!("{turn} {before}"));
                }
            });
        }
    });
}

/// Rank 0 asks for them in one order, rank 1 in the other, and both wait for all at once.
#[test]
fn links_of_different_names_are_made_in_any_order() {
    let names = ["hook A", "hook_a", "hook-a", "é", "0", "A", "B"];
    world(2, |meeting| {
        thread::scope(|scope| {
            let mut mine = names.to_vec();
            if meeting.world().rank() == Rank(1) {
                mine.reverse();
            }
            for name in mine {
                let meeting = &meeting;
                scope.spawn(move || {
                    assert_eq!(pass_on(meeting.link_named(name).unwrap(), name), name);
                });
            }
            assert_eq!(pass_on(meeting.link().unwrap(), "no name"), "no name");
        });
    });
}

#[test]
fn a_name_used_again_is_another_link() {
    world(2, |meeting| {
        for turn in ["first", "second", "third"] {
            assert_eq!(pass_on(meeting.link_named("again").unwrap(), turn), turn);
        }
    });
}

#[test]
fn names_have_a_limit() {
    world(2, |meeting| {
        let long = "é".repeat(24);
        assert_eq!(pass_on(meeting.link_named(&long).unwrap(), "long"), "long");
        for name in [format!("{long}x"), String::new()] {
            let error = meeting.link_named(&name).map(|_| ()).unwrap_err();
            assert_eq!(error.kind, Kind::Invalid);
        }
    });
}

/// A watch that ends every wait once it is told to, in the words of a lost rank.
fn watch(is_lost: &Arc<AtomicBool>) -> Watch {
    let is_lost = Arc::clone(is_lost);
    Watch::new(move |awaited| match is_lost.load(Ordering::Relaxed) {
        true => Err(link::Error::lost(awaited[0], "it is gone")),
        false => Ok(()),
    })
}

#[test]
fn a_watched_link_is_not_awaited_once_the_watch_knows_that_a_rank_is_lost() {
    let is_lost = Arc::new(AtomicBool::new(false));
    world(2, |meeting| match meeting.world().rank() {
        Rank(0) => {
            let error = meeting.link_watched("second", watch(&is_lost)).unwrap_err();
            assert_eq!(error.to_string(), "lost rank 1: it is gone");
        }
        _ => is_lost.store(true, Ordering::Relaxed),
    });
}

#[test]
fn a_watch_explains_the_end_of_the_store() {
    let (store, coordinator) = open("127.0.0.1", 0, "secret").unwrap();
    let meeting = meet(1, 2, &coordinator, Host::Launcher).unwrap();
    let is_lost = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let waits = scope.spawn(|| meeting.link_watched("second", watch(&is_lost)).unwrap_err());
        drop(store);
        is_lost.store(true, Ordering::Relaxed);
        assert_eq!(waits.join().unwrap().to_string(), "lost rank 0: it is gone");
    });
}

fn step(rank: u32, coordinator: &str, job: &str) -> Place {
    let (job, source) = (Some(job.to_owned()), Source::Slurm);
    Place { job, source, ..place(rank, 2, coordinator, Host::RankZero) }
}

/// Whoever comes first, and whether or not it means to come.
#[test]
fn ranks_of_another_job_are_refused_and_change_nothing() {
    let coordinator = free();
    let settings = Settings { timeout: LONG, ..Settings::default() };
    let rank = |rank, job| Meeting::new(&step(rank, &coordinator, job), "secret", &settings);
    let zero = rank(0, "Slurm step 77.0").unwrap();
    let said = format!("rank 1 of Slurm step 77.1 found Slurm step 77.0 at {coordinator}");
    let declined = decline(&step(1, &coordinator, "Slurm step 77.1"), "secret", "no data");
    for error in [rank(1, "Slurm step 77.1").unwrap_err(), declined.unwrap_err()] {
        assert_eq!(error.to_string(), said);
        assert!(error.hint().is_some_and(|hint| hint.contains("MASTER_PORT")));
    }
    let error = rank(0, "Slurm step 77.1").unwrap_err();
    assert_eq!(error.kind, Kind::Link(link::Kind::AddressInUse));
    let one = rank(1, "Slurm step 77.0").unwrap();
    let word = |meeting: &Meeting, word| pass_on(meeting.link().unwrap(), word);
    thread::scope(|scope| {
        let zero = scope.spawn(|| word(&zero, "zero"));
        assert_eq!(word(&one, "one"), "zero");
        assert_eq!(zero.join().unwrap(), "one");
    });
}

/// The store of the first meeting is gone, and another job has its address.
#[test]
fn a_later_link_is_not_made_with_another_job() {
    let coordinator = free();
    let zero = meet(0, 2, &coordinator, Host::RankZero).unwrap();
    let one = meet(1, 2, &coordinator, Host::RankZero).unwrap();
    drop(zero);
    let other = meet(0, 2, &coordinator, Host::RankZero).unwrap();
    let error = one.link().map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), format!("another job meets at {coordinator} by now"));
    let store = other.store().unwrap().0;
    assert!(store.get("link/0/epoch/0/world", Duration::ZERO).is_err());
}

#[test]
fn variables_of_a_shell_are_named_where_nobody_comes() {
    let settings = Settings { timeout: Duration::from_millis(50), ..Settings::default() };
    let settings = Settings { heartbeat_timeout: settings.timeout, ..settings };
    let place = step(0, &free(), "Slurm step 7.0");
    let error = Meeting::new(&place, "", &settings).unwrap().link().map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("rank 1 of 2 did not appear"), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("rank 0 of 2 of Slurm step 7.0") && hint.contains("unset"), "{hint}");
}

fn disagrees(meeting: Result<Meeting, Error>) -> String {
    let error = meeting.and_then(|meeting| meeting.link().map(|_| ())).unwrap_err();
    assert_eq!(error.kind, Kind::Link(link::Kind::WorldMismatch), "{error}");
    error.to_string()
}

/// Whoever comes first, both are told before the host of the store has gone.
#[test]
fn worlds_that_disagree_are_told_to_all() {
    for zero_is_first in [true, false] {
        let coordinator = free();
        let rank = |rank, world| {
            let coordinator = coordinator.clone();
            thread::spawn(move || disagrees(meet(rank, world, &coordinator, Host::RankZero)))
        };
        let said = if zero_is_first {
            let zero = rank(0, 2);
            Client::connect(&coordinator, &Token::new("secret"), LONG).unwrap();
            [zero, rank(1, 3), rank(2, 3)]
        } else {
            let [one, two] = [rank(1, 3), rank(2, 3)];
            [rank(0, 2), one, two]
        }
        .map(|rank| rank.join().unwrap());
        let zero = "rank 0 was started with world 2, rank";
        assert!([1, 2].map(|other| format!("{zero} {other} with world 3")).contains(&said[0]));
        let told = |rank| format!("rank {rank} was started with world 3, rank 0 with world 2");
        assert_eq!(said[1..], [told(1), told(2)]);
    }
}

/// Rank 0 finds a belief that is not its own, and must not take the store along before the rank
/// that left it there has seen why.
#[test]
fn the_host_of_the_store_stays_until_others_know() {
    let coordinator = free();
    let zero = meet(0, 2, &coordinator, Host::RankZero).unwrap();
    let one = {
        let coordinator = coordinator.clone();
        thread::spawn(move || disagrees(meet(1, 3, &coordinator, Host::RankZero)))
    };
    zero.store().unwrap().0.get("link/0/epoch/0/rank/1", LONG).unwrap();
    assert_eq!(disagrees(Ok(zero)), "rank 0 was started with world 2, rank 1 with world 3");
    assert_eq!(one.join().unwrap(), "rank 1 was started with world 3, rank 0 with world 2");
}

/// Whoever it is, rank 0 that would host the store included.
#[test]
fn a_rank_that_does_not_come_is_not_waited_for() {
    for absent in 0..3 {
        let coordinator = free();
        let rank = |rank| {
            let place = place(rank, 3, &coordinator, Host::RankZero);
            thread::spawn(move || match rank == absent {
                true => decline(&place, "secret", "no data").map(|()| "absent".to_owned()).unwrap(),
                false => {
                    let meeting = meet(rank, 3, &place.coordinator, Host::RankZero);
                    meeting.and_then(|meeting| meeting.link().map(|_| ())).unwrap_err().to_string()
                }
            })
        };
        let ranks = [0, 1, 2].map(rank);
        for (rank, said) in (0..).zip(ranks.map(|rank| rank.join().unwrap())) {
            let told = format!("rank {absent} does not come: no data");
            assert_eq!(said, if rank == absent { "absent" } else { &told });
        }
    }
}

/// Whoever it is, rank 0 that hosts the store included.
#[test]
fn a_rank_whose_port_is_taken_is_not_waited_for() {
    for absent in 0..3 {
        let coordinator = free();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let rank = |rank| {
            let place = place(rank, 3, &coordinator, Host::RankZero);
            let port = (rank == absent).then_some(port);
            let settings = Settings { timeout: LONG, port, ..Settings::default() };
            thread::spawn(move || {
                let meeting = Meeting::new(&place, "secret", &settings);
                meeting.and_then(|meeting| meeting.link().map(|_| ())).unwrap_err().to_string()
            })
        };
        let ranks = [0, 1, 2].map(rank);
        let why = format!("port {port} of 127.0.0.1 is in use by another program");
        for (rank, said) in (0..).zip(ranks.map(|rank| rank.join().unwrap())) {
            let told = format!("rank {absent} does not come: {why}");
            assert!(said.starts_with(if rank == absent { &why } else { &told }), "{said}");
        }
    }
}

/// Who runs the ranks of one machine sees them end.
#[test]
fn a_launcher_is_not_told() {
    let (_store, coordinator) = open("127.0.0.1", 0, "secret").unwrap();
    decline(&place(0, 2, &coordinator, Host::Launcher), "other", "no data").unwrap();
    decline(&place(0, 1, "nowhere:1", Host::RankZero), "", "no data").unwrap();
    let client = Client::connect(&coordinator, &Token::new("secret"), LONG).unwrap();
    assert!(client.get("link/0/epoch/0/objection", Duration::ZERO).is_err());
}

#[test]
fn another_token_is_named_with_a_hint() {
    let (_store, coordinator) = open("127.0.0.1", 0, "other").unwrap();
    let error = meet(1, 2, &coordinator, Host::RankZero).unwrap_err();
    assert_eq!(error.kind, Kind::Link(link::Kind::TokenMismatch));
    assert_eq!(error.hint(), Some("start every rank of one job with the same token"));
}

#[test]
fn a_meeting_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Meeting>();
}
