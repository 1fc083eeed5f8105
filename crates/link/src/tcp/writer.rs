//! The sending half of a connection: a queue of frames, written without copying payloads.
//!
//! In clear, headers and payloads of many frames leave in one system call, payloads directly from their
//! memory. Encrypted, payloads are sealed directly from their memory into records, in one pass.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};

use thinwire_wire::{HEADER_BYTES, Header, Rank, Tag, checksum};

use crate::Port;
use crate::secure::{RECORD_BYTES_MAX, RECORD_PLAIN_BYTES_MAX, Session};
use crate::tcp::buffer::{Moved, attempt};
use crate::tcp::reader::Protection;

/// The most frames in one system call.
const FRAMES_PER_WRITE: usize = 64;
/// The most bytes in one system call, so that other connections have their turn.
const BYTES_PER_WRITE: usize = 4 << 20;
/// Number of records that are sealed ahead of the socket.
const RECORDS_AHEAD: usize = 4;
/// From this size on, a payload is sealed directly from its memory, instead of together with its
/// neighbours.
const SEAL_IN_PLACE_BYTES_MIN: usize = 16 << 10;

/// The frames that wait for a connection.
#[derive(Debug)]
pub struct Writer {
    to: Rank,
    /// Whether payloads get a checksum.
    check: bool,
    queue: VecDeque<Outgoing>,
    queued_bytes: usize,
    /// Number of frames that have left.
    pub frames: u64,
    sealed: Option<Sealed>,
}

#[derive(Debug)]
struct Outgoing {
    header: Header,
    /// The header as it is sent, made when its turn has come.
    bytes: Option<[u8; HEADER_BYTES]>,
    /// Bytes of header and payload that have left.
    gone: usize,
}

#[derive(Debug)]
struct Sealed {
    gathered: Vec<u8>,
    records: Box<[u8]>,
    start: usize,
    end: usize,
    /// The frames that end in these records, and the end of the record that each ends in.
    ending: VecDeque<(Tag, usize)>,
}

impl Outgoing {
    fn len(&self) -> usize {
        HEADER_BYTES + self.header.length as usize
    }
}

impl Writer {
    /// Returns an empty queue to `to`.
    pub fn new(to: Rank, protection: Protection) -> Writer {
        let sealed = (protection == Protection::Sealed).then(|| Sealed {
            gathered: Vec::with_capacity(RECORD_PLAIN_BYTES_MAX),
            records: vec![0; RECORDS_AHEAD * RECORD_BYTES_MAX].into(),
            start: 0,
            end: 0,
            ending: VecDeque::new(),
        });
        Writer {
            to,
            check: protection == Protection::Checksum,
            queue: VecDeque::new(),
            queued_bytes: 0,
            frames: 0,
            sealed,
        }
    }

    /// Queues a frame.
    pub fn push(&mut self, header: Header) {
        let frame = Outgoing { header, bytes: None, gone: 0 };
        self.queued_bytes += frame.len();
        self.queue.push_back(frame);
    }

    /// Returns the number of bytes that have not left. Bytes that are not sealed yet are counted together
    /// with the seals that they may need.
    pub fn pending_bytes(&self) -> usize {
        let Some(sealed) = &self.sealed else { return self.queued_bytes };
        let records =
            self.queue.len().min(FRAMES_PER_WRITE) + self.queued_bytes / RECORD_PLAIN_BYTES_MAX;
        let seals = records * (RECORD_BYTES_MAX - RECORD_PLAIN_BYTES_MAX);
        self.queued_bytes + seals + sealed.end - sealed.start
    }

    /// Returns whether there are frames for which [`Port::sent`] has not been called.
    pub fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
            || self.sealed.as_ref().is_some_and(|sealed| !sealed.ending.is_empty())
    }

    /// Returns the frame whose bytes leave next.
    pub fn leaving(&self) -> Option<Tag> {
        let sealed = self.sealed.as_ref().and_then(|sealed| sealed.ending.front());
        sealed.map(|(tag, _)| *tag).or_else(|| self.queue.front().map(|frame| frame.header.tag))
    }

    /// Writes up to `limit` bytes, in one system call.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn write(
        &mut self,
        stream: &mut dyn Write,
        session: Option<&mut Session>,
        port: &mut dyn Port,
        limit: usize,
    ) -> io::Result<Moved> {
        let limit = limit.min(BYTES_PER_WRITE);
        match session {
            None => self.write_clear(stream, port, limit),
            Some(session) => {
                self.seal(session, port);
                self.write_sealed(stream, port, limit)
            }
        }
    }

    fn write_clear(
        &mut self,
        stream: &mut dyn Write,
        port: &mut dyn Port,
        limit: usize,
    ) -> io::Result<Moved> {
        self.make_headers(&*port);
        let mut slices = [IoSlice::new(&[]); 2 * FRAMES_PER_WRITE];
        let (mut count, mut room) = (0, limit);
        for frame in self.queue.iter().take(FRAMES_PER_WRITE) {
            for part in parts(self.to, frame, &*port) {
                let part = &part[..part.len().min(room)];
                if !part.is_empty() {
                    slices[count] = IoSlice::new(part);
                    count += 1;
                    room -= part.len();
                }
            }
            if room == 0 {
                break;
            }
        }
        let wanted = limit - room;
        let written = attempt(wanted, || stream.write_vectored(&slices[..count]))?
            .ok_or(ErrorKind::WriteZero)?;
        let (to, mut frames) = (self.to, 0);
        self.advance(written.bytes, |tag| {
            frames += 1;
            port.sent(to, &tag);
        });
        self.frames += frames;
        Ok(written)
    }

    /// Makes the headers that the next write needs.
    fn make_headers(&mut self, port: &dyn Port) {
        for frame in self.queue.iter_mut().take(FRAMES_PER_WRITE) {
            if frame.bytes.is_some() {
                continue;
            }
            // Only now, just before the payload is read for the socket: it is still in the cache.
            if self.check && frame.header.length > 0 {
                let payload = port.outgoing(self.to, &frame.header.tag);
                frame.header.payload_checksum = Some(checksum(payload));
            }
            frame.bytes = Some(frame.header.to_bytes());
        }
    }

    /// Accounts for `bytes` of header and payload that were taken; calls `done` with each complete
    /// frame.
    fn advance(&mut self, mut bytes: usize, mut done: impl FnMut(Tag)) {
        self.queued_bytes -= bytes;
        while let Some(front) = self.queue.front_mut() {
            let step = bytes.min(front.len() - front.gone);
            front.gone += step;
            bytes -= step;
            if front.gone < front.len() {
                break;
            }
            done(front.header.tag);
            self.queue.pop_front();
            if bytes == 0 {
                break;
            }
        }
    }

    /// Seals frames until enough records lie ahead of the socket.
    fn seal(&mut self, session: &mut Session, port: &dyn Port) {
        let Some(mut sealed) = self.sealed.take() else { return };
        // Records are never moved: room comes back when all of them have left.
        if sealed.start == sealed.end {
            (sealed.start, sealed.end) = (0, 0);
        }
        while !self.queue.is_empty() && sealed.records.len() - sealed.end >= RECORD_BYTES_MAX {
            self.make_headers(port);
            let [header, payload] = parts(self.to, &self.queue[0], port);
            let plain = if header.is_empty() && payload.len() >= SEAL_IN_PLACE_BYTES_MIN {
                &payload[..payload.len().min(RECORD_PLAIN_BYTES_MAX)]
            } else {
                self.gather(&mut sealed.gathered, port);
                &sealed.gathered
            };
            let length = plain.len();
            sealed.end += session.seal_into(plain, &mut sealed.records[sealed.end..]);
            let end = sealed.end;
            self.advance(length, |tag| sealed.ending.push_back((tag, end)));
        }
        self.sealed = Some(sealed);
    }

    /// Copies the content of the next record: many small frames, or the head of a large one.
    fn gather(&self, gathered: &mut Vec<u8>, port: &dyn Port) {
        gathered.clear();
        for frame in self.queue.iter().take(FRAMES_PER_WRITE) {
            let [header, payload] = parts(self.to, frame, port);
            let large = payload.len() >= SEAL_IN_PLACE_BYTES_MIN;
            for part in [header, if large { &[] } else { payload }] {
                let room = RECORD_PLAIN_BYTES_MAX - gathered.len();
                gathered.extend_from_slice(&part[..part.len().min(room)]);
            }
            if large || gathered.len() == RECORD_PLAIN_BYTES_MAX {
                break;
            }
        }
    }

    /// Writes what is sealed. A frame is sent when its last record has left, not when it is sealed: a
    /// rank that has sent everything may not get another turn for long.
    fn write_sealed(
        &mut self,
        stream: &mut dyn Write,
        port: &mut dyn Port,
        limit: usize,
    ) -> io::Result<Moved> {
        let sealed = self.sealed.as_mut().expect("a session comes with its buffer");
        let end = sealed.end.min(sealed.start.saturating_add(limit));
        let written =
            attempt(end - sealed.start, || stream.write(&sealed.records[sealed.start..end]))?
                .ok_or(ErrorKind::WriteZero)?;
        sealed.start += written.bytes;
        while let Some((tag, _)) = sealed.ending.pop_front_if(|(_, end)| *end <= sealed.start) {
            self.frames += 1;
            port.sent(self.to, &tag);
        }
        Ok(written)
    }
}

/// Returns the rest of header and payload that has not left.
fn parts<'a>(to: Rank, frame: &'a Outgoing, port: &'a (dyn Port + 'a)) -> [&'a [u8]; 2] {
    let header = frame.bytes.as_ref().map_or(&[][..], |bytes| &bytes[..]);
    if frame.header.length == 0 {
        return [&header[frame.gone..], &[]];
    }
    let payload = port.outgoing(to, &frame.header.tag);
    assert_eq!(payload.len(), frame.header.length as usize, "payload of {}", frame.header.tag);
    let gone = frame.gone.saturating_sub(HEADER_BYTES);
    [&header[frame.gone.min(HEADER_BYTES)..], &payload[gone..]]
}
