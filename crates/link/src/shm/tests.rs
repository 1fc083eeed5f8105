//! Laws of rings and streams, between two sides in one process.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use thinwire_wire::random::Key;
use thinwire_wire::{Header, Kind as Frame, Rank, Tag, World};

use super::handover::{Offer, Visit};
use super::{Segment, Stream, ring_bytes};
use crate::duplex::timespec;
use crate::tcp::connection::{Connection, Parts};
use crate::tcp::control::Control;
use crate::tcp::peer::Peer;
use crate::tcp::reader::Traffic;
use crate::tcp::transport::Transport;
use crate::tcp::{Link, Options};
use crate::{Kind, Token};

/// What no test should ever take.
const LONG: Duration = Duration::from_secs(300);
const LENGTH: usize = 4096;

/// Both sides of memory with rings of `length` bytes, the host's first.
fn pair(length: usize) -> [Segment; 2] {
    let offer = Offer::new(length).unwrap();
    let visit = Visit::begin(&offer.to_bytes()).unwrap();
    assert!(offer.hand_over());
    let guest = visit.take().unwrap();
    [offer.into_segment(), guest]
}

fn streams(length: usize) -> [Stream; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    let [host, guest] = pair(length);
    let socket = |end: UnixStream| TcpStream::from(OwnedFd::from(end));
    [Stream::new(socket(one), host), Stream::new(socket(other), guest)]
}

/// Byte `position` of a stream that no other stream has.
fn byte(seed: u64, position: u64) -> u8 {
    (Key { seed, step: 0, tensor: 0 }.word(position / 4) >> (8 * (position % 4))) as u8
}

fn bytes(seed: u64, start: u64, length: usize) -> Vec<u8> {
    (start..start + length as u64).map(|position| byte(seed, position)).collect()
}

proptest! {
    /// The model is a queue of at most the ring's length, for each direction.
    #[test]
    fn what_is_read_is_what_was_written_in_order(
        steps in prop::collection::vec((0usize..4, 0usize..6000, 0usize..3000), 1..200),
    ) {
        let mut sides = pair(LENGTH).map(|segment| segment.rings);
        let mut queues = [VecDeque::new(), VecDeque::new()];
        let mut sent = [0u64; 2];
        for (kind, first, second) in steps {
            let (writes, direction) = (kind % 2 == 0, kind / 2);
            if writes {
                let payload = bytes(direction as u64, sent[direction], first + second);
                let slices = [IoSlice::new(&payload[..first]), IoSlice::new(&payload[first..])];
                let written = sides[direction].write(&slices, || {}).unwrap();
                prop_assert_eq!(written, payload.len().min(LENGTH - queues[direction].len()));
                queues[direction].extend(&payload[..written]);
                sent[direction] += written as u64;
            } else {
                let mut place = vec![0; first + second];
                let (one, other) = place.split_at_mut(first);
                let slices = &mut [IoSliceMut::new(one), IoSliceMut::new(other)];
                let read = sides[1 - direction].read(slices, || {}).unwrap();
                prop_assert_eq!(read, place.len().min(queues[direction].len()));
                let expected: Vec<u8> = queues[direction].drain(..read).collect();
                prop_assert!(place[..read] == expected);
            }
            for direction in 0..2 {
                prop_assert_eq!(sides[1 - direction].has_input(), !queues[direction].is_empty());
                prop_assert_eq!(sides[direction].has_room(), queues[direction].len() < LENGTH);
            }
        }
    }

    /// Whatever the other side writes over its positions, and the other numbers.
    #[test]
    fn nonsense_in_memory_is_an_error_or_a_position_that_could_be(
        moved in (0usize..5000, 0usize..5000),
        number in 0usize..8,
        nonsense in prop_oneof![any::<u64>(), 0u64..20_000, (0u64..20_000).prop_map(|far| u64::MAX - far)],
    ) {
        let [mut honest, mut hostile] = pair(LENGTH).map(|segment| segment.rings);
        let payload = vec![7; moved.0];
        let written = honest.write(&[IoSlice::new(&payload)], || {}).unwrap() as u64;
        let taken = moved.1.min(written as usize);
        let read = hostile.read(&mut [IoSliceMut::new(&mut vec![0; taken])], || {}).unwrap() as u64;
        hostile.memory().number(number * 128).store(nonsense, Ordering::SeqCst);
        let [into, out] = [4, 1];
        let mut place = vec![0; 2 * LENGTH];
        let found = honest.read(&mut [IoSliceMut::new(&mut place)], || {});
        match number == into && nonsense != 0 {
            true if nonsense <= LENGTH as u64 => prop_assert_eq!(found.unwrap() as u64, nonsense),
            true => prop_assert_eq!(found.unwrap_err().kind(), ErrorKind::InvalidData),
            false => prop_assert_eq!(found.unwrap(), 0),
        }
        let room = honest.write(&[IoSlice::new(&place)], || {});
        match number == out {
            true if nonsense > written => {
                prop_assert_eq!(room.unwrap_err().kind(), ErrorKind::InvalidData);
            }
            true => prop_assert_eq!(room.unwrap() as u64, LENGTH as u64 - (written - nonsense)),
            false => prop_assert_eq!(room.unwrap() as u64, LENGTH as u64 - (written - read)),
        }
    }
}

#[test]
fn a_position_that_goes_back_is_nonsense() {
    let [mut honest, mut hostile] = pair(LENGTH).map(|segment| segment.rings);
    hostile.write(&[IoSlice::new(&[1; 100])], || {}).unwrap();
    honest.read(&mut [IoSliceMut::new(&mut [0; 100])], || {}).unwrap();
    hostile.memory().number(4 * 128).store(99, Ordering::SeqCst);
    let error = honest.read(&mut [IoSliceMut::new(&mut [0; 100])], || {}).unwrap_err();
    let expected = "wrote position 99 to shared memory, expected 100 to 4196";
    assert_eq!(error.to_string(), expected);
}

/// Sleeps until something of `events` may have happened.
fn sleep(stream: &mut Stream, events: PollFlags) {
    if !stream.arm(events) {
        return;
    }
    let mut fds: Vec<_> = stream.poll_fds().collect();
    assert!(poll(&mut fds, Some(&timespec(LONG))).unwrap() > 0, "a wake-up was lost");
    let found: Vec<_> = fds.iter().map(PollFd::revents).collect();
    drop(fds);
    stream.polled(&found);
}

/// Writes `total` bytes and reads as many, in pieces of random lengths, and sleeps whenever nothing moves.
fn converse(mut stream: Stream, mine: u64, theirs: u64, total: u64) {
    let (mut sent, mut received) = (0, 0);
    let key = Key { seed: mine, step: 1, tensor: 0 };
    let mut turns = 0;
    while sent < total || received < total {
        turns += 1;
        let length = key.word(turns) % 9000 + 1;
        let payload = bytes(mine, sent, (total - sent).min(length.into()) as usize);
        let wrote = if payload.is_empty() { 0 } else { stream.write(&payload).unwrap_or(0) };
        sent += wrote as u64;
        let mut place = vec![0; length as usize];
        let read = stream.read(&mut place).unwrap_or(0);
        assert!(place[..read] == bytes(theirs, received, read), "byte {received}");
        received += read as u64;
        if wrote + read == 0 {
            let room = if sent < total { PollFlags::OUT } else { PollFlags::empty() };
            sleep(&mut stream, PollFlags::IN | room);
        }
    }
    // The other side may still have to read.
    stream.socket().shutdown(std::net::Shutdown::Write).unwrap();
    while !matches!(stream.read(&mut [0]), Ok(0)) {
        sleep(&mut stream, PollFlags::IN);
    }
}

/// What happens before a side has asked for a wake-up rings no bell.
#[test]
fn nobody_sleeps_over_what_has_happened_already() {
    let [mut one, mut other] = streams(LENGTH);
    assert!(other.arm(PollFlags::IN));
    assert!(!other.arm(PollFlags::OUT));
    assert_eq!(one.write(&[1; LENGTH]).unwrap(), LENGTH);
    assert!(!other.arm(PollFlags::IN));
    assert!(one.arm(PollFlags::OUT));
    assert_eq!(other.read(&mut [0]).unwrap(), 1);
    assert!(!one.arm(PollFlags::OUT));
}

#[test]
fn no_wake_up_is_lost() {
    for length in [LENGTH, 1 << 16] {
        let [host, guest] = streams(length);
        let guest = thread::spawn(move || converse(guest, 2, 1, 20 << 20));
        converse(host, 1, 2, 20 << 20);
        guest.join().unwrap();
    }
}

/// One side only writes, the other only reads: it is woken by nothing but the other's step.
#[test]
fn a_reader_and_a_writer_wake_each_other() {
    let [mut writer, mut reader] = streams(LENGTH);
    let total = 50_000;
    let writing = thread::spawn(move || {
        for position in 0..total {
            while writer.write(&[byte(3, position)]).is_err() {
                sleep(&mut writer, PollFlags::OUT);
            }
        }
        writer
    });
    for position in 0..total {
        let mut place = [0];
        while reader.read(&mut place).is_err() {
            sleep(&mut reader, PollFlags::IN);
        }
        assert_eq!(place[0], byte(3, position));
    }
    writing.join().unwrap();
}

#[test]
fn what_was_written_before_the_end_is_read() {
    let [mut one, mut other] = streams(LENGTH);
    assert_eq!(one.write(&[5; 5000]).unwrap(), LENGTH);
    assert_eq!(one.write(&[5; 5000]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(one);
    let mut place = [0; 3000];
    assert_eq!(other.read(&mut place).unwrap(), 3000);
    sleep(&mut other, PollFlags::IN);
    assert_eq!(other.read(&mut place).unwrap(), LENGTH - 3000);
    let start = Instant::now();
    while other.read(&mut place).is_err() {
        assert!(start.elapsed() < LONG);
        sleep(&mut other, PollFlags::IN);
    }
    assert_eq!(other.read(&mut place).unwrap(), 0);
}

/// A link to a peer with whose side of the memory a test does what it likes.
fn link_to(memory: Stream) -> (Link, [UnixStream; 1]) {
    let (control, far) = UnixStream::pair().unwrap();
    control.set_nonblocking(true).unwrap();
    let control = Transport::Socket(TcpStream::from(OwnedFd::from(control)));
    let connection = |stream, traffic| {
        let parts = Parts { stream, session: None, read_ahead: Vec::new(), same_host: true };
        Connection::new(Rank(1), 0, traffic, parts)
    };
    let data = vec![connection(Transport::Memory(memory.into()), Traffic::Data)];
    let peer = Peer::new(Rank(1), 0, connection(control, Traffic::Control), data);
    let options = Options { heartbeat_timeout: None, ..Options::new(Token::new("")) };
    let world = World::new(0, 2).unwrap();
    (Link::new(world, vec![None, Some(peer)], &options).unwrap(), [far])
}

#[test]
fn a_peer_that_writes_nonsense_is_named() {
    let header = Header::new(Frame::Data, 0, Tag { step: 0, tensor: 0, message: 0 }, 0);
    for (number, expected) in [(4, "0 to 4096"), (1, "0 to 0")] {
        let [mine, theirs] = streams(LENGTH);
        let (mut link, _control) = link_to(mine);
        link.send(Rank(1), header);
        theirs.segment.rings.memory().number(number * 128).store(5000, Ordering::SeqCst);
        let error = link.progress(&mut Control::default()).unwrap_err();
        assert_eq!((error.kind, error.rank), (Kind::Corrupt, Some(Rank(1))));
        let context = format!("rank 1 wrote position 5000 to shared memory, expected {expected}");
        assert_eq!(error.context, context);
    }
}

#[test]
fn a_peer_that_writes_beside_the_memory_is_lost() {
    let [mine, theirs] = streams(LENGTH);
    let (mut link, _control) = link_to(mine);
    let mut beside = theirs.socket();
    beside.write_all(&[1]).unwrap();
    let error = loop {
        match link.progress(&mut Control::default()) {
            Ok(_) => link.wait(LONG).unwrap(),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind, error.rank), (Kind::PeerLost, Some(Rank(1))));
}

#[test]
fn ranks_with_many_peers_have_shorter_rings() {
    let lengths = [0, 1, 31, 32, 33, 64, 100, 4095 * 64].map(ring_bytes);
    let kib = lengths.map(|length| length >> 10);
    assert_eq!(kib, [1024, 1024, 1024, 1024, 512, 512, 256, 64]);
}
