//! Ports and worlds for tests.
#![allow(dead_code)] // each test file uses its own part

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::store::{self, Store};
use thinwire_link::tcp::{self, Connections, Encryption, Options, SharedMemory};
use thinwire_link::{Bandwidth, Error, Link, Place, Port, Token, mem};
use thinwire_wire::random::Key;
use thinwire_wire::{Header, Kind, Rank, Tag, World};

/// What no test should ever take.
pub const LONG: Duration = Duration::from_secs(300);

/// The payload of a message: nobody else's.
pub fn pattern(from: Rank, to: Rank, tag: Tag, length: usize) -> Vec<u8> {
    let seed = u64::from(from.0) << 32 | u64::from(to.0);
    let key = Key { seed, step: tag.step, tensor: tag.tensor ^ tag.message };
    let word = key.word(u64::from(tag.message));
    (0..length)
        .map(|i| (word.wrapping_add(i as u32).wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Keeps what is sent and what was received; refuses a place now and then.
#[derive(Default)]
pub struct Post {
    pub outgoing: BTreeMap<(Rank, Tag), Vec<u8>>,
    pub places: BTreeMap<(Rank, Tag), Vec<u8>>,
    pub received: BTreeMap<(Rank, Tag), Vec<u8>>,
    /// Of 256 requests for a place, this many are told to come later.
    pub later: u32,
    pub asked: u64,
}

impl Port for Post {
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8] {
        &self.outgoing[&(to, *tag)]
    }

    fn sent(&mut self, to: Rank, tag: &Tag) {
        self.outgoing.remove(&(to, *tag)).expect("sent once");
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        self.asked += 1;
        let key = Key { seed: 1, step: 0, tensor: 0 };
        if key.word(self.asked) & 255 < self.later {
            return Ok(Place::Defer);
        }
        let place = self.places.entry((from, header.tag));
        Ok(Place::Here(place.or_insert_with(|| vec![0xee; header.length as usize])))
    }

    fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error> {
        let payload = self.places.remove(&(from, header.tag)).expect("a place was given");
        let twice = self.received.insert((from, header.tag), payload);
        assert!(twice.is_none(), "{} received twice", header.tag);
        Ok(())
    }
}

impl Post {
    /// Queues a message.
    pub fn send(&mut self, link: &mut Link, to: Rank, tag: Tag, length: usize) {
        let payload = pattern(link.world().rank(), to, tag, length);
        self.outgoing.insert((to, tag), payload);
        link.send(to, Header::new(Kind::Data, 0, tag, length));
    }

    /// Drives the link until `done`.
    pub fn drive(&mut self, link: &mut Link, done: impl Fn(&Post) -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + LONG;
        while !done(self) {
            assert!(Instant::now() < deadline, "{} hangs", link.world().rank());
            if !link.progress(self)? {
                // A refused place is asked for again; nothing else ends this wait.
                let timeout = if self.later > 0 { Duration::from_millis(1) } else { LONG };
                link.wait(timeout)?;
            }
        }
        Ok(())
    }
}

pub fn tag(message: u32) -> Tag {
    Tag { step: 1, tensor: 2, message }
}

/// TCP without heartbeats, so that nothing but what a test does ends a wait.
pub fn options() -> Options {
    Options { shared_memory: SharedMemory::Never, ..shared() }
}

/// As [`options`], through shared memory.
pub fn shared() -> Options {
    Options { timeout: LONG, heartbeat_timeout: None, ..Options::new(Token::new("test")) }
}

/// Connects a world over TCP, one thread per rank.
pub fn tcp_mesh(size: u32, options: &Options) -> Vec<Link> {
    let store = store::mem::Mem::new();
    let ranks = connect_all(size, &store, |_| options.clone());
    let links: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
    let shared = options.shared_memory == SharedMemory::Auto
        && options.encryption != Encryption::Always
        && cfg!(target_os = "linux");
    for link in &links {
        assert!(link.world().peers().all(|peer| link.shares_memory(peer) == shared));
        assert!(link.world().peers().all(|peer| link.shares_host(peer)));
    }
    links
}

/// What each rank's `connect` gives.
pub fn connect_all(
    size: u32,
    store: &dyn Store,
    options: impl Fn(u32) -> Options,
) -> Vec<Result<Link, Error>> {
    thread::scope(|scope| {
        let connect = |rank| {
            let options = options(rank);
            scope.spawn(move || tcp::connect(World::new(rank, size).unwrap(), store, &options))
        };
        let ranks: Vec<_> = (0..size).map(connect).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Every kind of link by name.
pub fn every_link(size: u32) -> Vec<(&'static str, Vec<Link>)> {
    let fast = Bandwidth::parse_limit("2gbit").unwrap();
    let sealed = Options { encryption: Encryption::Always, ..options() };
    vec![
        ("mem", mem::mesh(size)),
        ("shm", tcp_mesh(size, &shared())),
        (
            "shm striped",
            tcp_mesh(size, &Options { connections: Connections::Exactly(3), ..shared() }),
        ),
        ("shm limited", tcp_mesh(size, &Options { limit: fast, ..shared() })),
        ("tcp", tcp_mesh(size, &options())),
        (
            "tcp striped",
            tcp_mesh(size, &Options { connections: Connections::Exactly(3), ..options() }),
        ),
        ("tcp encrypted", tcp_mesh(size, &sealed)),
        (
            "tcp encrypted and striped",
            tcp_mesh(size, &Options { connections: Connections::Exactly(2), ..sealed.clone() }),
        ),
        ("tcp limited", tcp_mesh(size, &Options { limit: fast, ..options() })),
        ("tcp limited and encrypted", tcp_mesh(size, &Options { limit: fast, ..sealed })),
    ]
}
