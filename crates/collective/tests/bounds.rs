//! Limits of a peer that has the token: it cannot take unbounded memory, or defeat the timeout.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use thinwire_collective::{Error, Group, Kind, replay, start};
use thinwire_link::{Link, Place, Port};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::{Header, Kind as Frame, Rank, Tag};

const LENGTH: usize = 8;
/// What no test should ever take.
const LONG: Duration = Duration::from_secs(300);

/// Sends the same bytes in every frame, and expects none.
struct Sender {
    payload: Vec<u8>,
    sent: usize,
}

impl Port for Sender {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.payload
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {
        self.sent += 1;
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, thinwire_link::Error> {
        panic!("{from} sent {header:?}")
    }

    fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), thinwire_link::Error> {
        Ok(())
    }
}

/// The tag of the first message numbered `number` from rank 1 to rank 0.
fn tag(number: u32) -> Tag {
    Tag { step: 3 << 62 | u64::from(number) << 32 | 1, tensor: 1 << 16, message: 0 }
}

fn junk(number: u32, length: usize) -> Header {
    Header::new(Frame::Data, 0, Tag { step: 7, tensor: 7, message: number }, length)
}

fn message(number: u32) -> Header {
    let mut header = Header::new(Frame::Data, 0, tag(number), 4 * LENGTH);
    header.dtype = Some(thinwire_wire::DType::F32);
    header
}

fn recv(group: &mut Group, number: u32) -> Result<(), Error> {
    let run = start::recv(group, vec![0.0; LENGTH], Rank(1), number)?;
    group.complete(&mut [run])
}

/// Sends the frames until all have left or the link is over.
fn send_all(link: &mut Link, frames: impl Iterator<Item = Header>) {
    let frames: Vec<Header> = frames.collect();
    let mut port = Sender { payload: vec![0; 4 * LENGTH], sent: 0 };
    for frame in &frames {
        if frame.length == 0 {
            port.payload.clear();
        }
        link.send(Rank(0), *frame);
    }
    while port.sent < frames.len() && link.progress(&mut port).is_ok() {
        if link.wait(LONG).is_err() {
            break;
        }
    }
}

#[test]
fn a_frame_now_and_then_that_nobody_awaits_does_not_defeat_the_timeout() {
    const FRAMES: u32 = 10_000;
    for network in Network::ALL {
        let ended = testkit::spawn(network, 2, |mut link| {
            if link.world().rank() == Rank(0) {
                let mut group = Group::new(link).with_timeout(Duration::from_millis(300));
                return recv(&mut group, 0).unwrap_err().kind() == Kind::Timeout;
            }
            let mut port = Sender { payload: vec![0; 16], sent: 0 };
            let told = (0..FRAMES).find(|number| {
                link.send(Rank(0), junk(*number, 16));
                let next = Instant::now() + Duration::from_millis(10);
                while let Some(left) = next.checked_duration_since(Instant::now()) {
                    if link.progress(&mut port).is_err() || link.wait(left).is_err() {
                        return true;
                    }
                }
                false
            });
            // Else rank 0 would have waited for as long as there was junk.
            told.is_some()
        });
        assert_eq!(ended, [true, true], "{network:?}");
    }
}

#[test]
fn a_flood_of_empty_frames_is_not_taken_in_and_is_named() {
    const FRAMES: u32 = 700_000;
    for network in [Network::Mem, Network::Tcp] {
        let errors = testkit::spawn(network, 2, |mut link| {
            if link.world().rank() == Rank(0) {
                let mut group = Group::new(link).with_timeout(Duration::from_secs(10));
                return Some(recv(&mut group, 0).unwrap_err().to_string());
            }
            send_all(&mut link, (0..FRAMES).map(|number| junk(number, 0)));
            None
        });
        let error = errors[0].as_ref().unwrap();
        let expected = "rank 1 is 524288 messages ahead (256 MiB), and no more are accepted";
        assert!(error.contains(expected), "{network:?}: {error}");
    }
}

#[test]
fn ten_thousand_messages_may_come_before_any_is_asked_for() {
    const MESSAGES: u32 = 10_000;
    for network in Network::ALL {
        testkit::spawn(network, 2, |mut link| {
            if link.world().rank() == Rank(1) {
                send_all(&mut link, (0..MESSAGES).map(message));
                let _ = link.finish(LONG);
                return;
            }
            let mut group = Group::new(link);
            for number in (0..MESSAGES).rev() {
                recv(&mut group, number).unwrap();
            }
        });
    }
}

#[test]
fn a_message_that_comes_slowly_outlasts_the_timeout() {
    let limit = "1mbit".parse().unwrap();
    let results = testkit::spawn_limited(Network::Tcp, 2, Some(limit), |link| {
        let mut group = Group::new(link).with_timeout(Duration::from_secs(4));
        // 6.4 s on the wire.
        let values = vec![1.0; 200_000];
        let run = match group.world().rank() {
            Rank(0) => start::recv(&mut group, values, Rank(1), 0),
            _ => start::send(&mut group, values, Rank(0), 0),
        };
        group.complete(&mut [run.unwrap()])
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// The frame of a header and as many zeros as it says.
fn frame(header: Header) -> Vec<u8> {
    [header.to_bytes().as_slice(), &vec![0; header.length as usize]].concat()
}

#[test]
fn what_has_come_once_does_not_come_again() {
    let twice = [frame(junk(0, 8)), frame(junk(0, 8))].concat();
    let error = replay(&twice, usize::MAX).outcome.unwrap_err();
    assert!(error.to_string().contains("rank 1 sent message 0 twice"), "{error}");
}

proptest! {
    #[test]
    fn whatever_a_peer_sends_is_charged_for_or_refused(
        frames in prop::collection::vec((0_u64..8, 0_u32..3, 0_u32..6, 0_usize..700), 0..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        piece_bytes in 1_usize..3000,
    ) {
        let mut bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(step, tensor, message, length)| {
                let tag = Tag { step: *step, tensor: *tensor, message: *message };
                frame(Header::new(Frame::Data, 0, tag, *length))
            })
            .collect();
        for (index, byte) in damage {
            if let Some(length) = std::num::NonZero::new(bytes.len()) {
                bytes[index.index(length.get())] ^= byte;
            }
        }
        let replayed = replay(&bytes, piece_bytes);
        // A charge of 512 bytes and the payload for every 40 bytes and the payload.
        prop_assert!(replayed.charged_bytes <= 13 * bytes.len() + 1024);
    }
}
