//! Readers against streams that are cut, damaged or made up.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;
use thinwire_wire::{Kind as Frame, Tag};

use super::*;
use crate::secure::{Handshake, Preamble, Role, Token};

type Frames = Vec<(Header, Vec<u8>)>;

/// Accepts everything up to a megabyte.
#[derive(Default)]
struct Sink {
    place: Vec<u8>,
    frames: Frames,
}

impl Port for Sink {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &[]
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {}

    fn incoming(&mut self, _from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        if header.length > 1 << 20 {
            return Err(Error::new(Kind::Limit, "too long"));
        }
        self.place.resize(header.length as usize, 0);
        Ok(Place::Here(&mut self.place))
    }

    fn received(&mut self, _from: Rank, header: &Header) -> Result<(), Error> {
        self.frames.push((*header, std::mem::take(&mut self.place)));
        Ok(())
    }
}

/// Reads a stream that holds these bytes and ends.
fn read_all(
    bytes: &[u8],
    mut session: Option<Session>,
    limit: usize,
) -> Result<(Frames, bool), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || drop(writer.write_all(&bytes)));
    let protection = match session {
        Some(_) => Protection::Sealed,
        None => Protection::Checksum,
    };
    let mut reader = Reader::new(Rank(1), 0, Traffic::Data, protection, &[]);
    let mut sink = Sink::default();
    let mut outcome = Ok(());
    while outcome.is_ok() && !reader.ended {
        outcome = reader.read(&mut stream, session.as_mut(), &mut sink, limit).map(|_| ());
    }
    drop(stream);
    writing.join().unwrap();
    outcome.map(|()| (sink.frames, reader.is_torn()))
}

fn sessions() -> (Session, Session) {
    let side = |role| Handshake::new(role, &Token::new("t"), Preamble { encrypt: true });
    let (mut a, mut b) = (side(Role::Initiator), side(Role::Responder));
    let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
    a.advance(&mut to_a, &mut to_b).unwrap();
    b.advance(&mut to_b, &mut to_a).unwrap();
    a.advance(&mut to_a, &mut to_b).unwrap();
    let b = b.advance(&mut to_b, &mut to_a).unwrap().unwrap().0;
    (a.advance(&mut to_a, &mut to_b).unwrap().unwrap().0, b)
}

fn frame(message: u32, payload: &[u8], check: bool) -> Vec<u8> {
    let tag = Tag { step: 0, tensor: 0, message };
    let mut header = Header::new(Frame::Data, 0, tag, payload.len());
    header.payload_checksum = check.then(|| thinwire_wire::checksum(payload));
    [&header.to_bytes()[..], payload].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_come_out_however_the_stream_is_cut(
        sizes in prop::collection::vec(prop_oneof![0usize..100, 10_000usize..200_000], 0..8),
        record in 1usize..RECORD_PLAIN_BYTES_MAX,
        limit in prop_oneof![1usize..5000, Just(usize::MAX)],
        seal: bool,
    ) {
        let limit = limit.max(sizes.iter().sum::<usize>() / 500);
        let payloads: Vec<Vec<u8>> =
            sizes.iter().map(|size| (0..*size).map(|i| (i % 251) as u8).collect()).collect();
        let mut stream = Vec::new();
        for (message, payload) in payloads.iter().enumerate() {
            stream.extend(frame(message as u32, payload, true));
        }
        let (mut a, b) = sessions();
        if seal {
            let mut sealed = Vec::new();
            let record = record.max(stream.len() / 100 + 1).min(RECORD_PLAIN_BYTES_MAX);
            stream.chunks(record).for_each(|plain| a.seal(plain, &mut sealed));
            stream = sealed;
        }
        let (frames, torn) = read_all(&stream, seal.then_some(b), limit).unwrap();
        prop_assert!(!torn);
        prop_assert_eq!(frames.len(), payloads.len());
        for ((_, found), payload) in frames.iter().zip(&payloads) {
            prop_assert!(found == payload);
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_torn_or_nothing(
        mut bytes in prop::collection::vec(any::<u8>(), 1..400), seal: bool, valid: bool,
    ) {
        if valid {
            bytes.splice(..0, frame(0, b"payload", false));
        }
        let session = seal.then(|| sessions().1);
        if let Ok((frames, torn)) = read_all(&bytes, session, usize::MAX) {
            prop_assert!(torn);
            prop_assert!(frames.len() <= 1);
        }
    }

    #[test]
    fn a_flipped_bit_in_a_record_or_checked_frame_is_noticed(bit in 0usize..8 * 100, seal: bool) {
        let mut stream = frame(0, &[7; 60], true);
        let (mut a, b) = sessions();
        if seal {
            let mut sealed = Vec::new();
            a.seal(&stream, &mut sealed);
            stream = sealed;
        }
        stream[bit / 8] ^= 1 << (bit % 8);
        match read_all(&stream, seal.then_some(b), usize::MAX) {
            Err(error) => prop_assert_eq!(error.kind, Kind::Corrupt),
            // A longer record never ends.
            Ok((frames, torn)) => prop_assert!(seal && torn && frames.is_empty()),
        }
    }
}

#[test]
fn frames_of_another_epoch_or_channel_are_refused() {
    let tag = Tag { step: 0, tensor: 0, message: 0 };
    let stale = Header::new(Frame::Data, 9, tag, 0).to_bytes();
    let error = read_all(&stale, None, 1000).unwrap_err();
    assert_eq!(error.to_string(), "rank 1 sent something that is not a frame: epoch 9, expected 0");
    let bye = Header::new(Frame::Bye, 0, tag, 0).to_bytes();
    assert_eq!(read_all(&bye, None, 1000).unwrap_err().kind, Kind::Corrupt);
}
