//! Every message arrives once, whole, at its rank: every link, many worlds, sizes and orders.

mod ports;

use std::thread;
use std::time::{Duration, Instant};

use ports::{LONG, Post, every_link, options, pattern, tag, tcp_mesh};
use thinwire_link::tcp::{Connections, Encryption, Options};
use thinwire_link::{Counters, Error, Link, Place, Port};
use thinwire_wire::random::{Key, permutation};
use thinwire_wire::{HEADER_BYTES, Header, Kind, Rank, Tag};

const SIZES: [usize; 14] =
    [0, 1, 40, 1009, 4099, 16_384, 65_519, 65_520, 70_001, 131_071, 1 << 20, 3, 0, 64];

/// Sends every size to every peer in an order of its own and receives as much.
fn exchange(mut link: Link, rounds: u32, later: u32) -> Result<Counters, Error> {
    let (world, count) = (link.world(), SIZES.len() as u32 * rounds);
    let mut post = Post { later, ..Post::default() };
    let mut sends: Vec<_> =
        world.peers().flat_map(|peer| (0..count).map(move |message| (peer, message))).collect();
    let key = Key { seed: u64::from(world.rank().0), step: 0, tensor: 0 };
    let order = permutation(key, sends.len() as u32);
    sends = order.into_iter().map(|index| sends[index as usize]).collect();
    for (peer, message) in sends {
        let size = SIZES[message as usize % SIZES.len()];
        post.send(&mut link, peer, tag(message), size);
    }
    let expected = (world.size() - 1) * count as usize;
    post.drive(&mut link, |post| post.received.len() == expected && post.outgoing.is_empty())?;
    for ((from, tag), payload) in &post.received {
        let size = SIZES[tag.message as usize % SIZES.len()];
        assert!(*payload == pattern(*from, world.rank(), *tag, size), "{from} {tag}");
    }
    let counters = link.counters();
    link.finish(LONG)?;
    Ok(counters)
}

fn everybody_exchanges(size: u32, rounds: u32, later: u32) {
    for (name, links) in every_link(size) {
        let ranks: Vec<_> = links
            .into_iter()
            .map(|link| thread::spawn(move || exchange(link, rounds, later)))
            .collect();
        let frames = u64::from((size - 1) * rounds) * SIZES.len() as u64;
        let payload = u64::from((size - 1) * rounds) * SIZES.iter().sum::<usize>() as u64;
        let least = payload + frames * HEADER_BYTES as u64;
        for rank in ranks {
            let counters = rank.join().unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                (counters.sent_frames, counters.received_frames),
                (frames, frames),
                "{name}"
            );
            for bytes in [counters.sent_bytes, counters.received_bytes] {
                assert!(
                    least <= bytes && bytes <= least + least / 50 + 100_000,
                    "{name} {bytes} {least}"
                );
            }
        }
    }
}

#[test]
fn one_rank_is_a_world() {
    everybody_exchanges(1, 1, 0);
}

#[test]
fn two_ranks_exchange() {
    everybody_exchanges(2, 5, 0);
}

#[test]
fn two_ranks_exchange_with_places_that_come_later() {
    everybody_exchanges(2, 2, 100);
}

#[test]
fn three_ranks_exchange() {
    everybody_exchanges(3, 2, 30);
}

#[test]
fn four_ranks_exchange() {
    everybody_exchanges(4, 2, 0);
}

#[test]
fn five_ranks_exchange() {
    everybody_exchanges(5, 1, 30);
}

#[test]
fn eight_ranks_exchange() {
    everybody_exchanges(8, 1, 0);
}

#[test]
fn ten_thousand_tiny_messages_arrive() {
    for (name, links) in every_link(2) {
        let ranks: Vec<_> = links
            .into_iter()
            .map(|mut link| {
                thread::spawn(move || {
                    let mut post = Post::default();
                    let peer = link.world().after(1);
                    for message in 0..10_000 {
                        post.send(&mut link, peer, tag(message), 32);
                    }
                    post.drive(&mut link, |p| p.received.len() == 10_000 && p.outgoing.is_empty())?;
                    link.finish(LONG)
                })
            })
            .collect();
        for rank in ranks {
            rank.join().unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// Whoever is told that all is sent may turn to other things: nothing waits for another turn, not
/// even what was sealed ahead of a socket that was full.
#[test]
fn what_is_sent_needs_no_more_turns() {
    for encryption in [Encryption::Never, Encryption::Always] {
        let mut links = tcp_mesh(2, &Options { encryption, ..options() });
        let (mut sender, mut receiver) = (links.pop().unwrap(), links.pop().unwrap());
        let (mut outbox, mut inbox) = (Post::default(), Post::default());
        let (to, mut messages) = (receiver.world().rank(), 0);
        // Until the socket is full, as nobody reads it.
        while outbox.outgoing.is_empty() {
            outbox.send(&mut sender, to, tag(messages), 65_519);
            messages += 1;
            while sender.progress(&mut outbox).unwrap() {}
            sender.wait(Duration::ZERO).unwrap();
        }
        let sent = messages as usize - outbox.outgoing.len();
        inbox.drive(&mut receiver, |inbox| inbox.received.len() == sent).unwrap();
    }
}

/// Has no place for message 0 before message 1 has come.
#[derive(Default)]
struct Gate(Post);

impl Port for Gate {
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8] {
        self.0.outgoing(to, tag)
    }

    fn sent(&mut self, to: Rank, tag: &Tag) {
        self.0.sent(to, tag);
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        match header.tag == tag(0) && self.0.received.is_empty() {
            true => Ok(Place::Defer),
            false => self.0.incoming(from, header),
        }
    }

    fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error> {
        self.0.received(from, header)
    }
}

/// Sockets take as much although nobody reads it.
const BULK_BYTES: usize = 100_000;

/// What is bulk is stuck in its socket, and what is not overtakes it.
#[test]
fn bulk_holds_up_nothing_else() {
    let two = Options { connections: Connections::Exactly(2), ..options() };
    let mut links = tcp_mesh(2, &two);
    let (mut sender, mut receiver) = (links.pop().unwrap(), links.pop().unwrap());
    let (to, from) = (receiver.world().rank(), sender.world().rank());
    let sending = thread::spawn(move || {
        let mut post = Post::default();
        post.outgoing.insert((to, tag(0)), pattern(from, to, tag(0), BULK_BYTES));
        sender.send_bulk(to, Header::new(Kind::Data, 0, tag(0), BULK_BYTES));
        post.drive(&mut sender, |post| post.outgoing.is_empty())?;
        post.send(&mut sender, to, tag(1), 1009);
        post.drive(&mut sender, |post| post.outgoing.is_empty())?;
        sender.finish(LONG)
    });
    let (mut gate, deadline) = (Gate::default(), Instant::now() + LONG);
    while gate.0.received.len() < 2 {
        assert!(Instant::now() < deadline, "bulk is in the way");
        if !receiver.progress(&mut gate).unwrap() {
            receiver.wait(Duration::from_millis(1)).unwrap();
        }
    }
    receiver.finish(LONG).unwrap();
    sending.join().unwrap().unwrap();
    for (message, length) in [(0, BULK_BYTES), (1, 1009)] {
        let expected = pattern(from, to, tag(message), length);
        assert_eq!(gate.0.received[&(from, tag(message))], expected);
    }
}

/// Three ranks with a connection for bulk, whose links are emulated.
fn three_with_bulk() -> [Link; 3] {
    let limit = Some("100mbit".parse().unwrap());
    let links = tcp_mesh(3, &Options { connections: Connections::Exactly(2), limit, ..options() });
    links.try_into().unwrap_or_else(|_| panic!("three ranks have three links"))
}

/// Reads until a message has come.
fn receives(mut link: Link) -> thread::JoinHandle<Result<Link, Error>> {
    thread::spawn(move || {
        Post::default().drive(&mut link, |post| !post.received.is_empty())?;
        Ok(link)
    })
}

/// Queues a message that nobody waits for yet.
fn send_bulk(link: &mut Link, post: &mut Post, to: Rank, length: usize) {
    let from = link.world().rank();
    post.outgoing.insert((to, tag(0)), pattern(from, to, tag(0), length));
    link.send_bulk(to, Header::new(Kind::Data, 0, tag(0), length));
}

#[test]
fn bulk_gives_way_to_what_goes_to_others() {
    const BULK: usize = 4 << 20;
    const URGENT: usize = 500_000;
    let [mut sender, first, second] = three_with_bulk();
    let readers = [receives(first), receives(second)];
    let mut post = Post::default();
    send_bulk(&mut sender, &mut post, Rank(1), BULK);
    while sender.counters().sent_bytes < 200_000 {
        if !sender.progress(&mut post).unwrap() {
            sender.wait(LONG).unwrap();
        }
    }
    post.send(&mut sender, Rank(2), tag(1), URGENT);
    let before = sender.counters().sent_bytes;
    post.drive(&mut sender, |post| !post.outgoing.contains_key(&(Rank(2), tag(1)))).unwrap();
    let sent = (sender.counters().sent_bytes - before) as usize;
    assert!(sent < URGENT + URGENT / 4, "{sent} bytes left before {URGENT} had");
    post.drive(&mut sender, |post| post.outgoing.is_empty()).unwrap();
    readers.into_iter().for_each(|reader| drop(reader.join().unwrap().unwrap()));
}

#[test]
fn bulk_does_not_wait_for_what_nobody_reads() {
    let [mut sender, _busy, second] = three_with_bulk();
    let reader = receives(second);
    let mut post = Post::default();
    // More than sockets take, to a rank that is busy with something else.
    post.send(&mut sender, Rank(1), tag(1), 32 << 20);
    send_bulk(&mut sender, &mut post, Rank(2), BULK_BYTES);
    post.drive(&mut sender, |post| !post.outgoing.contains_key(&(Rank(2), tag(0)))).unwrap();
    assert!(post.outgoing.contains_key(&(Rank(1), tag(1))), "nobody reads it");
    reader.join().unwrap().unwrap();
}
