//! The bytes between a socket and its frames.

use std::io::{self, ErrorKind, Read};

use crate::{Error, Kind};

/// Bytes that one system call has moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Bytes that came or left.
    pub bytes: usize,
    /// Whether the socket has no more to read or no more room, as far as is known.
    pub stopped: bool,
}

/// Bytes that were read and not taken yet.
#[derive(Debug)]
pub struct Buffer {
    pub bytes: Box<[u8]>,
    pub start: usize,
    pub end: usize,
}

impl Buffer {
    pub fn new(size: usize) -> Buffer {
        Buffer { bytes: vec![0; size].into(), start: 0, end: 0 }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub fn fill(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
    }

    pub fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
    }

    /// Returns room for `length` more bytes.
    pub fn room(&mut self, length: usize) -> Result<&mut [u8], Error> {
        self.compact();
        let end = self.end;
        self.bytes.get_mut(end..end + length).ok_or_else(|| {
            Error::new(Kind::Limit, format!("sent a record of {length} bytes behind {end} others"))
        })
    }

    pub fn read(&mut self, stream: &mut dyn Read, limit: usize) -> io::Result<Option<Moved>> {
        self.compact();
        let end = self.bytes.len().min(self.end.saturating_add(limit));
        let room = &mut self.bytes[self.end..end];
        let taken = attempt(room.len(), || stream.read(room))?;
        self.end += taken.map_or(0, |taken| taken.bytes);
        Ok(taken)
    }

    /// Returns the ciphertext of the first record, if it is complete.
    pub fn record(&self) -> Option<&[u8]> {
        let filled = self.filled();
        let length = usize::from(u16::from_le_bytes(*filled.first_chunk()?));
        filled.get(2..2 + length)
    }

    pub fn drop_record(&mut self) {
        self.start += 2 + self.record().map_or(0, <[u8]>::len);
    }
}

/// Makes a system call that moves at most `wanted` bytes. Returns `None` if the call moves nothing, for
/// instance because a read has reached the end of the stream.
pub fn attempt(
    wanted: usize,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<Option<Moved>> {
    if wanted == 0 {
        return Ok(Some(Moved::default()));
    }
    match call() {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(Moved { bytes, stopped: bytes < wanted })),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Ok(Some(Moved { bytes: 0, stopped: true }))
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(Moved::default())),
        Err(error) => Err(error),
    }
}
