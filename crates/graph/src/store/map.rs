//! The one place that maps a file into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a whole file for reading.
///
/// # Errors
/// If the system refuses.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes of a map must not change while a slice of it lives. Files of graphs are written
    // under another name and renamed when complete, and nothing in this crate opens one for writing again;
    // the documentation of `Store` asks the same of others. All readers index with bounds checks, so even a
    // file that somebody changes in place gives wrong numbers or a panic.
    unsafe { Mmap::map(file) }
}
