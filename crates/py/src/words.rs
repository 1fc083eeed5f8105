//! Byte strings of any length in a buffer of words, each from a word of its own on.

use std::borrow::Cow;
use std::ops::Range;

use crate::memory::{Buffer, Memory};

/// Where byte strings of these lengths begin when they follow each other, and how long they are.
pub(crate) fn places(lengths: &[usize]) -> Vec<(usize, usize)> {
    let mut end = 0;
    let place = |&length: &usize| {
        end += length;
        (end - length, length)
    };
    lengths.iter().map(place).collect()
}

/// The buffer, and where each string is in it.
pub(crate) struct Words<'a> {
    values: Cow<'a, [f32]>,
    ranges: Vec<Range<usize>>,
}

impl<'a> Words<'a> {
    /// An empty buffer for strings of these lengths in bytes.
    pub(crate) fn new(lengths: &[usize]) -> Words<'static> {
        let ranges = ranges(lengths);
        let words = lengths.iter().map(|bytes| bytes.div_ceil(4)).sum();
        Words { values: Cow::Owned(vec![0.0; words]), ranges }
    }

    /// A buffer that holds strings of these lengths in bytes.
    pub(crate) fn of(values: &'a [f32], lengths: &[usize]) -> Words<'a> {
        Words { values: Cow::Borrowed(values), ranges: ranges(lengths) }
    }

    /// Copies a string in.
    pub(crate) fn put(&mut self, index: usize, source: Memory) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.values.to_mut());
        bytes[self.ranges[index].clone()].copy_from_slice(source.bytes());
    }

    /// Copies a string out.
    pub(crate) fn get(&self, index: usize, mut target: Memory) {
        let bytes: &[u8] = bytemuck::cast_slice(&self.values);
        target.bytes_mut().copy_from_slice(&bytes[self.ranges[index].clone()]);
    }

    /// The buffer alone.
    pub(crate) fn into_buffer(self) -> Buffer {
        Buffer::Owned(self.values.into_owned())
    }
}

/// The bytes of each string.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut word = 0;
    let range = |&bytes: &usize| {
        let start = word * 4;
        word += bytes.div_ceil(4);
        start..start + bytes
    };
    lengths.iter().map(range).collect()
}
