//! Memory that two processes map. All access to it is in this file.
//!
//! The other process may change every byte at any moment. So no reference to its bytes is ever made:
//! bytes are copied through raw pointers, and numbers are loaded as atomics. Bytes that are copied
//! while the other side writes them are garbage, as if that side had sent garbage. Between two sides
//! that obey the protocol, the positions in [`super::ring`] prevent it.
//!
//! The file behind a mapping is sealed against shrinking, so every page exists.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

/// A mapped file.
#[derive(Debug)]
pub struct Memory(MmapRaw);

impl Memory {
    /// Maps the first `length` bytes of `file`, which must be sealed against shrinking.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn map(file: &OwnedFd, length: usize) -> io::Result<Memory> {
        // Populated now, so that the first bytes do not wait for a page fault on every page.
        Ok(Memory(MmapOptions::new().len(length).populate().map_raw(file)?))
    }

    /// Returns the number at byte `at`.
    ///
    /// # Panics
    /// If `at` is not aligned, or the number does not lie in the memory.
    pub fn number(&self, at: usize) -> &AtomicU64 {
        self.check(at, size_of::<AtomicU64>());
        assert!(at.is_multiple_of(align_of::<AtomicU64>()), "a number at byte {at}");
        // SAFETY: inside of the mapping, which is aligned to a page and lives as long as `self`. Numbers are
        // accessed as atomics alone, here and in the other process: bytes are copied elsewhere.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(at).cast()) }
    }

    /// Copies `bytes` into the memory, from byte `at` on.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn copy_in(&mut self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the target is inside of the mapping, to which no reference exists, and `bytes` is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_mut_ptr().add(at), bytes.len());
        }
    }

    /// Copies the bytes from byte `at` on into `bytes`.
    ///
    /// # Panics
    /// If the memory ends before `bytes` is full.
    pub fn copy_out(&mut self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        // SAFETY: the source is inside of the mapping, and `bytes`, which has any value, is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(self.0.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn check(&self, at: usize, length: usize) {
        let end = at.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.0.len()), "{length} bytes at byte {at}");
    }
}
