//! Speed of a link on loopback, compared in one run with a plain TcpStream.
//!
//! Two threads: 1 MB messages one way in GB/s, the round trip of a 64-byte message in µs, and ten
//! thousand 32-byte messages in ms. Medians of several rounds, with the least and the most.
//!
//! `cargo run --release -p thinwire-link --example throughput`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::store;
use thinwire_link::tcp::{self, Connections, Encryption, Options};
use thinwire_link::{Bandwidth, Error, Link, Place, Port, Token, mem};
use thinwire_wire::{Header, Kind, Rank, Tag, World};

const LARGE: usize = 1 << 20;
const LARGE_COUNT: usize = 1500;
const SMALL: usize = 64;
const SMALL_COUNT: usize = 10_000;
const TINY: usize = 32;
const ROUNDS: usize = 7;
const LONG: Duration = Duration::from_secs(60);
const TAG: Tag = Tag { step: 0, tensor: 0, message: 0 };

/// A port that sends from one buffer and receives into another.
struct Buffers {
    out: Vec<u8>,
    into: Vec<u8>,
    sent: usize,
    received: usize,
}

impl Port for Buffers {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.out
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {
        self.sent += 1;
    }

    fn incoming(&mut self, _from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        Ok(Place::Here(&mut self.into[..header.length as usize]))
    }

    fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), Error> {
        self.received += 1;
        Ok(())
    }
}

impl Buffers {
    fn new(size: usize) -> Buffers {
        Buffers { out: vec![1; size], into: vec![0; size], sent: 0, received: 0 }
    }

    fn drive(&mut self, link: &mut Link, sent: usize, received: usize) {
        while self.sent < sent || self.received < received {
            if !link.progress(self).expect("the peer is there") {
                link.wait(LONG).expect("poll works");
            }
        }
    }
}

fn queue(link: &mut Link, size: usize, count: usize) {
    let peer = link.world().after(1);
    for _ in 0..count {
        link.send(peer, Header::new(Kind::Data, 0, TAG, size));
    }
}

/// One way: rank 0 sends, rank 1 receives; the receiver's seconds.
fn one_way(link: &mut Link, size: usize, count: usize) -> f64 {
    let mut port = Buffers::new(size);
    let start = Instant::now();
    if link.world().rank() == Rank(0) {
        queue(link, size, count);
        port.drive(link, count, 1);
    } else {
        port.drive(link, 0, count);
        queue(link, size, 1);
        port.drive(link, 1, count);
    }
    start.elapsed().as_secs_f64()
}

/// Back and forth; seconds per round trip.
fn round_trips(link: &mut Link, count: usize) -> f64 {
    let mut port = Buffers::new(SMALL);
    let first = link.world().rank() == Rank(0);
    let start = Instant::now();
    for turn in 0..count {
        if first {
            queue(link, SMALL, 1);
        }
        port.drive(link, if first { turn + 1 } else { turn }, turn + 1);
        if !first {
            queue(link, SMALL, 1);
        }
    }
    port.drive(link, count, count);
    start.elapsed().as_secs_f64() / count as f64
}

fn measure(mut links: [Link; 2], rounds: usize, large: usize) -> Vec<[f64; 3]> {
    let rank = move |link: &mut Link| {
        (0..rounds)
            .map(|_| {
                [
                    (large * LARGE) as f64 / one_way(link, LARGE, large) / 1e9,
                    round_trips(link, SMALL_COUNT.min(large * 10)) * 1e6,
                    one_way(link, TINY, SMALL_COUNT) * 1e3,
                ]
            })
            .collect::<Vec<_>>()
    };
    let [zero, one] = &mut links;
    thread::scope(|scope| {
        let other = scope.spawn(move || rank(one));
        let results = rank(zero);
        other.join().expect("no panic");
        results
    })
}

fn plain() -> Vec<[f64; 3]> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut a = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let mut b = listener.accept().expect("connected").0;
    a.set_nodelay(true).expect("a socket");
    b.set_nodelay(true).expect("a socket");
    let echo = thread::spawn(move || {
        let mut buffer = vec![0; LARGE];
        for _ in 0..ROUNDS {
            for _ in 0..LARGE_COUNT {
                b.read_exact(&mut buffer).expect("the other end is there");
            }
            b.write_all(&buffer[..1]).expect("the other end is there");
            for _ in 0..SMALL_COUNT {
                b.read_exact(&mut buffer[..SMALL]).expect("the other end is there");
                b.write_all(&buffer[..SMALL]).expect("the other end is there");
            }
            for _ in 0..SMALL_COUNT {
                b.read_exact(&mut buffer[..TINY]).expect("the other end is there");
            }
            b.write_all(&buffer[..1]).expect("the other end is there");
        }
    });
    let mut buffer = vec![1; LARGE];
    let mut results = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..LARGE_COUNT {
            a.write_all(&buffer).expect("the other end is there");
        }
        a.read_exact(&mut buffer[..1]).expect("the other end is there");
        let large = (LARGE * LARGE_COUNT) as f64 / start.elapsed().as_secs_f64() / 1e9;
        let start = Instant::now();
        for _ in 0..SMALL_COUNT {
            a.write_all(&buffer[..SMALL]).expect("the other end is there");
            a.read_exact(&mut buffer[..SMALL]).expect("the other end is there");
        }
        let small = start.elapsed().as_secs_f64() / SMALL_COUNT as f64 * 1e6;
        let start = Instant::now();
        for _ in 0..SMALL_COUNT {
            a.write_all(&buffer[..TINY]).expect("the other end is there");
        }
        a.read_exact(&mut buffer[..1]).expect("the other end is there");
        results.push([large, small, start.elapsed().as_secs_f64() * 1e3]);
    }
    echo.join().expect("no panic");
    results
}

fn connect(options: &Options) -> [Link; 2] {
    let store = store::mem::Mem::new();
    let rank = |rank| {
        let world = World::new(rank, 2).expect("a rank of two");
        tcp::connect(world, &store, options).expect("loopback")
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| rank(1));
        [rank(0), one.join().expect("no panic")]
    })
}

fn report(name: &str, mut rounds: Vec<[f64; 3]>) {
    print!("{name:<28}");
    for column in 0..3 {
        rounds.sort_by(|a, b| a[column].total_cmp(&b[column]));
        let at = |index: usize| rounds[index][column];
        let (least, median, most) = (at(0), at(rounds.len() / 2), at(rounds.len() - 1));
        print!("{median:>9.3} ({least:.3} to {most:.3})");
    }
    println!();
}

fn main() {
    println!(
        "{:<28}{:>20}{:>24}{:>24}",
        "", "1 MB one way, GB/s", "64 B round trip, µs", "10000 x 32 B, ms"
    );
    let options = Options::new(Token::new("throughput"));
    report("plain TcpStream", plain());
    report("tcp", measure(connect(&options), ROUNDS, LARGE_COUNT));
    report("plain TcpStream", plain());
    report("tcp", measure(connect(&options), ROUNDS, LARGE_COUNT));
    let striped = Options { connections: Connections::Exactly(2), ..options.clone() };
    report("tcp, 2 connections", measure(connect(&striped), ROUNDS, LARGE_COUNT));
    let sealed = Options { encryption: Encryption::Always, ..options.clone() };
    report("tcp, encrypted", measure(connect(&sealed), ROUNDS, LARGE_COUNT));
    let mut ranks = mem::mesh(2).into_iter();
    let ranks = [ranks.next().expect("two"), ranks.next().expect("two")];
    report("mem", measure(ranks, ROUNDS, LARGE_COUNT));
    for (limit, count) in [("100mbit", 12), ("1gbit", 120)] {
        let rate = Bandwidth::parse_limit(limit).expect("a bandwidth");
        let limited = Options { limit: rate, ..options.clone() };
        report(&format!("tcp, {limit}"), measure(connect(&limited), 3, count));
    }
}
