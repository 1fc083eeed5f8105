//! The receiving half of a connection: frames, read straight into their places.
//!
//! In clear, one system call brings the rest of a payload into its place and the next header into a
//! small buffer; if frames are small, it brings many of them into the buffer. Encrypted records are
//! opened directly into the place if they fit.

use std::io::{self, IoSliceMut, Read};

use crc32fast::Hasher;
use thinwire_wire::{HEADER_BYTES, Header, Rank};

use crate::secure::{RECORD_BYTES_MAX, RECORD_PLAIN_BYTES_MAX, Session};
use crate::tcp::buffer::{Buffer, Moved, attempt};
use crate::{Error, Kind, Place, Port};

/// Frames that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All but data: heartbeats, goodbyes and poison.
    Control,
    /// Data.
    Data,
}

/// Protection of frames against corruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// None: the bytes stay on this machine.
    Trusted,
    /// Payloads have a checksum.
    Checksum,
    /// Encryption, which detects corruption as well.
    Sealed,
}

/// Room for a whole record behind the beginning of a header.
const BUFFER_BYTES: usize = RECORD_PLAIN_BYTES_MAX + HEADER_BYTES;
/// After a payload of this size, the next read takes no more than a header in addition to the payload,
/// so that the next payload, which is probably large too, goes straight to its place.
const LARGE_BYTES: usize = 16 << 10;
/// Ciphertext read by one system call.
const SEALED_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// Reader of the frames of one connection.
#[derive(Debug)]
pub struct Reader {
    from: Rank,
    epoch: u32,
    traffic: Traffic,
    buffer: Buffer,
    sealed: Option<Buffer>,
    frame: Option<Incoming>,
    /// Number of frames that were delivered.
    pub frames: u64,
    large: bool,
    /// Whether the port has no buffer for the next payload yet.
    pub paused: bool,
    /// Whether the peer has closed its side.
    pub ended: bool,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    filled: usize,
    hasher: Option<Hasher>,
}

impl Reader {
    /// Returns a reader of frames from a rank in an epoch, with the bytes that came with the handshake.
    pub fn new(
        from: Rank,
        epoch: u32,
        traffic: Traffic,
        protection: Protection,
        read_ahead: &[u8],
    ) -> Reader {
        let mut buffer = Buffer::new(BUFFER_BYTES);
        let mut sealed = (protection == Protection::Sealed).then(|| Buffer::new(SEALED_BYTES));
        sealed.as_mut().unwrap_or(&mut buffer).fill(read_ahead);
        let (frame, frames, large, paused, ended) = (None, 0, false, false, false);
        Reader { from, epoch, traffic, buffer, sealed, frame, frames, large, paused, ended }
    }

    /// Returns whether the stream has ended in the middle of a frame.
    pub fn is_torn(&self) -> bool {
        self.ended && !self.paused && self.holds_something()
    }

    /// Returns whether the stream has ended and everything was delivered.
    pub fn is_finished(&self) -> bool {
        self.ended && !self.paused && !self.holds_something()
    }

    /// Returns the number of bytes that are still missing of the payload in progress.
    pub fn missing_bytes(&self) -> usize {
        self.frame.as_ref().map_or(0, |frame| frame.header.length as usize - frame.filled)
    }

    /// Returns the header of the frame whose payload has begun to arrive.
    pub fn arriving(&self) -> Option<&Header> {
        self.frame.as_ref().map(|frame| &frame.header)
    }

    fn holds_something(&self) -> bool {
        self.frame.is_some()
            || self.buffer.len() > 0
            || self.sealed.as_ref().is_some_and(|sealed| sealed.len() > 0)
    }

    /// Delivers what was read before, then reads up to `limit` bytes in one system call and
    /// delivers them.
    ///
    /// # Errors
    /// [`Kind::Io`] if the connection is broken, [`Kind::Corrupt`] if the bytes are not valid frames, or
    /// the error of the port.
    pub fn read(
        &mut self,
        stream: &mut dyn Read,
        mut session: Option<&mut Session>,
        port: &mut dyn Port,
        limit: usize,
    ) -> Result<Moved, Error> {
        self.paused = false;
        self.deliver_all(session.as_deref_mut(), port)?;
        if self.paused || self.ended || limit == 0 {
            return Ok(Moved::default());
        }
        let taken = match &mut self.sealed {
            Some(sealed) => sealed.read(stream, limit),
            None => self.read_clear(stream, port, limit)?,
        };
        let taken = taken.map_err(|error| Error::of_peer(self.from, error))?;
        self.ended = taken.is_none();
        self.deliver_all(session, port)?;
        Ok(taken.unwrap_or_default())
    }

    fn read_clear(
        &mut self,
        stream: &mut dyn Read,
        port: &mut dyn Port,
        limit: usize,
    ) -> Result<io::Result<Option<Moved>>, Error> {
        let ahead = if self.large { HEADER_BYTES } else { BUFFER_BYTES };
        // Buffered bytes come before those in the socket, so only an empty buffer lets a payload go
        // straight to its place.
        let Some(frame) = self.frame.as_mut().filter(|_| self.buffer.len() == 0) else {
            let missing = ahead.saturating_sub(self.buffer.len()).max(1);
            return Ok(self.buffer.read(stream, limit.min(missing)));
        };
        let Place::Here(place) = port.incoming(self.from, &frame.header)? else {
            self.paused = true;
            return Ok(Ok(Some(Moved::default())));
        };
        check_place(&frame.header, place)?;
        let rest = &mut place[frame.filled..];
        let direct = rest.len().min(limit);
        let ahead = ahead.min(limit - direct);
        let wanted = direct + ahead;
        let slices = &mut [
            IoSliceMut::new(&mut rest[..direct]),
            IoSliceMut::new(&mut self.buffer.bytes[..ahead]),
        ];
        let taken = attempt(wanted, || stream.read_vectored(slices));
        if let Ok(Some(taken)) = taken {
            let direct = taken.bytes.min(direct);
            frame.fill(&rest[..direct]);
            (self.buffer.start, self.buffer.end) = (0, taken.bytes - direct);
        }
        Ok(taken)
    }

    fn deliver_all(
        &mut self,
        session: Option<&mut Session>,
        port: &mut dyn Port,
    ) -> Result<(), Error> {
        self.deliver(port)?;
        let (Some(mut sealed), Some(session)) = (self.sealed.take(), session) else {
            return Ok(());
        };
        let mut opened = Ok(());
        while opened.is_ok() && !self.paused {
            match sealed.record() {
                Some(record) => opened = self.open(record, session, port),
                None => break,
            }
            // A record that the port defers stays sealed where it is, and is asked for again.
            if !self.paused {
                sealed.drop_record();
                opened = opened.and_then(|()| self.deliver(port));
            }
        }
        self.sealed = Some(sealed);
        opened
    }

    /// Opens a record into the place of the frame in progress if all of it belongs there, else
    /// into the buffer.
    fn open(
        &mut self,
        record: &[u8],
        session: &mut Session,
        port: &mut dyn Port,
    ) -> Result<(), Error> {
        let length = Session::plain_len(record.len())?;
        if let Some(frame) = &mut self.frame
            && self.buffer.len() == 0
            && frame.missing() >= length
        {
            let Place::Here(place) = port.incoming(self.from, &frame.header)? else {
                self.paused = true;
                return Ok(());
            };
            check_place(&frame.header, place)?;
            let rest = &mut place[frame.filled..][..length];
            session.open(record, rest)?;
            frame.fill(rest);
            return Ok(());
        }
        session.open(record, self.buffer.room(length)?)?;
        self.buffer.end += length;
        Ok(())
    }

    /// Delivers what lies in the buffer.
    fn deliver(&mut self, port: &mut dyn Port) -> Result<(), Error> {
        loop {
            let Some(frame) = &mut self.frame else {
                let Some(bytes) = self.buffer.filled().first_chunk::<HEADER_BYTES>() else {
                    return Ok(());
                };
                let header = self.parse(bytes)?;
                self.buffer.start += HEADER_BYTES;
                self.large = header.length as usize >= LARGE_BYTES;
                let hasher = header.payload_checksum.map(|_| Hasher::new());
                self.frame = Some(Incoming { header, filled: 0, hasher });
                continue;
            };
            let here = frame.missing().min(self.buffer.len());
            // A place is asked for when there is something to put, or nothing to wait for.
            if here > 0 || (frame.missing() == 0 && frame.filled == 0) {
                let Place::Here(place) = port.incoming(self.from, &frame.header)? else {
                    self.paused = true;
                    return Ok(());
                };
                check_place(&frame.header, place)?;
                let bytes = &self.buffer.filled()[..here];
                place[frame.filled..][..here].copy_from_slice(bytes);
                frame.fill(bytes);
                self.buffer.start += here;
            }
            if frame.missing() > 0 {
                return Ok(());
            }
            let header = frame.finish()?;
            self.frame = None;
            self.frames += 1;
            port.received(self.from, &header)?;
        }
    }

    fn parse(&self, bytes: &[u8; HEADER_BYTES]) -> Result<Header, Error> {
        let corrupt = |context: String| {
            let from = self.from;
            Error::new(
                Kind::Corrupt,
                format!("{from} sent something that is not a frame: {context}"),
            )
            .with_rank(from)
        };
        let header = Header::parse(bytes).map_err(|error| corrupt(error.to_string()))?;
        if header.epoch != self.epoch {
            return Err(corrupt(format!("epoch {}, expected {}", header.epoch, self.epoch)));
        }
        if (header.kind == thinwire_wire::Kind::Data) != (self.traffic == Traffic::Data) {
            return Err(corrupt(format!("{:?} on the wrong channel", header.kind)));
        }
        Ok(header)
    }
}

impl Incoming {
    fn missing(&self) -> usize {
        self.header.length as usize - self.filled
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.filled += bytes.len();
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
    }

    /// Returns the header of the complete frame, whose payload must match its checksum.
    fn finish(&mut self) -> Result<Header, Error> {
        if let (Some(expected), Some(hasher)) = (self.header.payload_checksum, self.hasher.take()) {
            let found = hasher.finalize();
            if found != expected {
                return Err(Error::new(
                    Kind::Corrupt,
                    format!(
                        "payload of {} was damaged: checksum {found:#010x}, expected {expected:#010x}",
                        self.header.tag
                    ),
                ));
            }
        }
        Ok(self.header)
    }
}

fn check_place(header: &Header, place: &[u8]) -> Result<(), Error> {
    if place.len() == header.length as usize {
        return Ok(());
    }
    Err(Error::new(
        Kind::Invalid,
        format!("{} has {} bytes, but its buffer has {}", header.tag, header.length, place.len()),
    ))
}

/// Hands `port` the frames of epoch 0 in `bytes`, as if `from` had sent them on an unencrypted data
/// connection in pieces of at most `piece_bytes`. Ends early if the port returns [`Place::Defer`].
///
/// # Errors
/// If the bytes are not valid frames, or the port returns an error.
pub fn replay(
    bytes: &[u8],
    piece_bytes: usize,
    from: Rank,
    port: &mut dyn Port,
) -> Result<(), Error> {
    let mut reader = Reader::new(from, 0, Traffic::Data, Protection::Checksum, &[]);
    let mut stream = bytes;
    while !reader.ended && !reader.paused {
        let taken = reader.read(&mut stream, None, port, piece_bytes.max(1))?;
        if let Some(header) = reader.arriving() {
            port.arriving(from, header, taken.bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
