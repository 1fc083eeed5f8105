//! Two rings of bytes in shared memory, one for each direction.
//!
//! A ring has two positions: the numbers of bytes that were ever written and read. Each side changes one of them,
//! and keeps a private copy of it. It loads the other side's position once for each read or write, and checks it
//! before use. The bytes themselves are checked like those of any stream.
//!
//! A side that finds nothing to do sets a flag that shows that it waits, checks once more, and sleeps.
//! The other side moves its position first and then checks the flag. A fence keeps each of these
//! orders, so at least one side sees what the other has done, and no wake-up is lost.
//!
//! Laws: the bytes that are read are those that were written, in order; no position that the other side may write
//! leads to a panic, or to bytes outside of the ring.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::shm::memory::Memory;

/// Bytes before the first ring, a page.
const CONTROL_BYTES: usize = 4096;
/// Distance between numbers, so that no two are in one cache line or in neighbouring ones.
const STRIDE: usize = 128;
/// Bytes after which a position is published, so that the other side works while this one copies.
const PIECE_BYTES: usize = 64 << 10;

/// The lengths that a ring may have.
pub const RING_BYTES: RangeInclusive<usize> = 4096..=4 << 20;

/// Side of a pair of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Maker of the memory.
    Host,
    /// Receiver of the memory.
    Guest,
}

/// One side's view of both rings.
#[derive(Debug)]
pub struct Rings {
    memory: Memory,
    length: usize,
    out: Layout,
    into: Layout,
    /// This side's position as the writer.
    written: u64,
    /// The other side's position as the reader, as last seen.
    acknowledged: u64,
    /// This side's position as the reader.
    read: u64,
    /// The other side's position as the writer, as last seen.
    announced: u64,
}

/// Places of one ring's numbers and bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    written: usize,
    read: usize,
    reader_waits: usize,
    writer_waits: usize,
    bytes: usize,
}

impl Layout {
    /// Returns the layout of the ring that `writer` writes to.
    fn of(writer: Side, length: usize) -> Layout {
        let number = match writer {
            Side::Host => 0,
            Side::Guest => 1,
        };
        let [written, read, reader_waits, writer_waits] =
            [0, 1, 2, 3].map(|place| (4 * number + place) * STRIDE);
        let bytes = CONTROL_BYTES + number * length;
        Layout { written, read, reader_waits, writer_waits, bytes }
    }
}

/// Returns the size in bytes of a file with two rings of `length` bytes each.
pub fn file_bytes(length: usize) -> usize {
    CONTROL_BYTES + 2 * length
}

/// Returns the length of each ring in a file of `file_bytes` bytes; `None` if no pair of rings has this
/// size.
pub fn length_in(file_bytes: u64) -> Option<usize> {
    let bytes = usize::try_from(file_bytes).ok()?.checked_sub(CONTROL_BYTES)?;
    let length = bytes / 2;
    let fits = bytes.is_multiple_of(2) && length.is_power_of_two() && RING_BYTES.contains(&length);
    fits.then_some(length)
}

impl Rings {
    /// Maps the rings in `file` as one side of them.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn map(file: &OwnedFd, side: Side, length: usize) -> io::Result<Rings> {
        let memory = Memory::map(file, file_bytes(length))?;
        let [mine, theirs] = match side {
            Side::Host => [Side::Host, Side::Guest],
            Side::Guest => [Side::Guest, Side::Host],
        };
        let (out, into) = (Layout::of(mine, length), Layout::of(theirs, length));
        let (written, acknowledged, read, announced) = (0, 0, 0, 0);
        Ok(Rings { memory, length, out, into, written, acknowledged, read, announced })
    }

    /// Copies bytes into the ring, in order, as far as there is room; `wake` wakes the reader if it
    /// waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if the other side has written an impossible position.
    pub fn write(&mut self, slices: &[IoSlice<'_>], mut wake: impl FnMut()) -> io::Result<usize> {
        let mut room = self.room()?;
        let before = self.written;
        let mut unannounced = 0;
        for slice in slices {
            let mut rest = &slice[..slice.len().min(room)];
            room -= rest.len();
            while !rest.is_empty() {
                let start = self.index(self.written);
                let step = (self.length - start).min(PIECE_BYTES - unannounced).min(rest.len());
                self.memory.copy_in(self.out.bytes + start, &rest[..step]);
                self.written += step as u64;
                rest = &rest[step..];
                unannounced += step;
                if unannounced == PIECE_BYTES {
                    self.announce(&mut wake);
                    unannounced = 0;
                }
            }
        }
        if unannounced > 0 {
            self.announce(&mut wake);
        }
        Ok((self.written - before) as usize)
    }

    /// Copies bytes out of the ring, in order; `wake` wakes the writer if it waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if the other side has written an impossible position.
    pub fn read(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
        mut wake: impl FnMut(),
    ) -> io::Result<usize> {
        let mut left = self.available()?;
        let before = self.read;
        let mut unacknowledged = 0;
        for slice in slices {
            let end = slice.len().min(left);
            left -= end;
            let mut rest = &mut slice[..end];
            while !rest.is_empty() {
                let start = self.index(self.read);
                let step = (self.length - start).min(PIECE_BYTES - unacknowledged).min(rest.len());
                let (now, later) = rest.split_at_mut(step);
                self.memory.copy_out(self.into.bytes + start, now);
                self.read += step as u64;
                rest = later;
                unacknowledged += step;
                if unacknowledged == PIECE_BYTES {
                    self.acknowledge(&mut wake);
                    unacknowledged = 0;
                }
            }
        }
        if unacknowledged > 0 {
            self.acknowledge(&mut wake);
        }
        Ok((self.read - before) as usize)
    }

    /// Returns whether a read would return bytes or an error.
    pub fn has_input(&self) -> bool {
        self.memory.number(self.into.written).load(Ordering::Acquire) != self.read
    }

    /// Returns whether a write would take bytes or return an error.
    pub fn has_room(&self) -> bool {
        let read = self.memory.number(self.out.read).load(Ordering::Acquire);
        read.wrapping_add(self.length as u64) != self.written
    }

    /// Asks the writer for a wake-up. Call [`Rings::has_input`] afterwards, before a sleep.
    pub fn await_input(&self) {
        ask(self.memory.number(self.into.reader_waits));
    }

    /// Asks the reader for a wake-up. Call [`Rings::has_room`] afterwards, before a sleep.
    pub fn await_room(&self) {
        ask(self.memory.number(self.out.writer_waits));
    }

    /// Returns the memory, into which tests write garbage.
    #[cfg(test)]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn announce(&self, wake: &mut impl FnMut()) {
        self.memory.number(self.out.written).store(self.written, Ordering::Release);
        if take(self.memory.number(self.out.reader_waits)) {
            wake();
        }
    }

    fn acknowledge(&self, wake: &mut impl FnMut()) {
        self.memory.number(self.into.read).store(self.read, Ordering::Release);
        // A writer is woken only when at least half of the ring is free, so that wake-ups are few. An empty ring
        // always wakes it, so a reader that finds nothing has woken the writer before it sleeps.
        let filled = (self.announced - self.read) as usize;
        if filled <= self.length / 2 && take(self.memory.number(self.into.writer_waits)) {
            wake();
        }
    }

    fn room(&mut self) -> io::Result<usize> {
        let read = self.memory.number(self.out.read).load(Ordering::Acquire);
        self.acknowledged = check(read, self.acknowledged..=self.written)?;
        Ok(self.length - (self.written - self.acknowledged) as usize)
    }

    fn available(&mut self) -> io::Result<usize> {
        let written = self.memory.number(self.into.written).load(Ordering::Acquire);
        self.announced = check(written, self.announced..=self.read + self.length as u64)?;
        Ok((self.announced - self.read) as usize)
    }

    /// Returns the place of a position in its ring.
    fn index(&self, position: u64) -> usize {
        // The length is a power of two, and less than 2^32.
        position as usize & (self.length - 1)
    }
}

fn check(found: u64, expected: RangeInclusive<u64>) -> io::Result<u64> {
    if expected.contains(&found) {
        return Ok(found);
    }
    let (least, most) = (expected.start(), expected.end());
    let context = format!("wrote position {found} to shared memory, expected {least} to {most}");
    Err(io::Error::new(ErrorKind::InvalidData, context))
}

fn ask(waits: &AtomicU64) {
    waits.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Clears a flag; returns whether it was set, in which case that side must be woken.
fn take(waits: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    // Mostly nobody waits, and a load alone leaves the cache line with both sides.
    waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0
}
