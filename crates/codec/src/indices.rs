//! Sorted indices in few bits.
//!
//! Elias, "Efficient Storage and Retrieval by Content and Address of Static Files" (1974): the
//! lower bits of an index are written as they are; the upper parts, which only grow, in unary:
//! bit `upper(i) + i` is set for the `i`-th index. The length depends only on the number of indices
//! and of elements, and is within half a bit per index of the minimum: 8.6 bits at 1 %.
//!
//! Layout: the lower bits, then the upper bits, each from the lowest bit of the first byte on, with
//! zeros to fill the last byte.

use crate::{Error, Kind};

/// Layout of `count` sorted indices below `universe`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    count: usize,
    universe: usize,
    low_bits: u32,
}

impl Indices {
    /// Returns the layout of `count` indices below `universe`.
    ///
    /// # Panics
    /// If `count` is above `universe`, or `universe` above 2^32.
    pub(crate) fn new(count: usize, universe: usize) -> Indices {
        assert!(count <= universe && universe as u64 <= 1 << 32, "{count} of {universe} indices");
        let low_bits = (universe / count.max(1)).max(1).ilog2();
        Indices { count, universe, low_bits }
    }

    /// Returns the number of indices.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the exact length in bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        self.low_len() + self.high_len()
    }

    fn low_len(&self) -> usize {
        (self.count * self.low_bits as usize).div_ceil(8)
    }

    fn high_len(&self) -> usize {
        match self.universe.checked_sub(1) {
            Some(last) if self.count > 0 => ((last >> self.low_bits) + self.count).div_ceil(8),
            _ => 0,
        }
    }

    /// Returns a writer of `count` increasing indices to `output`.
    pub(crate) fn writer<'a>(&self, output: &'a mut [u8]) -> Writer<'a> {
        output.fill(0);
        let (low, high) = output.split_at_mut(self.low_len());
        Writer {
            low_bits: self.low_bits,
            count: self.count,
            low,
            high,
            written: 0,
            bits: 0,
            pending: 0,
        }
    }

    /// Reads the indices in `encoded`, which has the exact length; each may be an error.
    pub(crate) fn read<'a>(
        &self,
        encoded: &'a [u8],
    ) -> impl Iterator<Item = Result<u32, Error>> + use<'a> {
        let Indices { count, universe, low_bits } = *self;
        let (low, high) = encoded.split_at(self.low_len());
        let mut ones = ones(high);
        let mut min = 0;
        (0..count).map(move |at| {
            let position = ones.next().ok_or_else(|| corrupt(count, universe, "too few"))?;
            // The i-th one cannot stand before bit i.
            let upper = (position - at) << low_bits;
            let index = upper | low_part(low, at, low_bits);
            if index >= universe || index < min {
                return Err(corrupt(count, universe, "unsorted or too large"));
            }
            min = index + 1;
            Ok(index as u32)
        })
    }
}

/// Writer of sorted indices.
pub(crate) struct Writer<'a> {
    low_bits: u32,
    count: usize,
    /// Bytes of lower bits that are not written yet.
    low: &'a mut [u8],
    high: &'a mut [u8],
    written: usize,
    /// Lower bits that do not fill their bytes yet, and their number.
    pending: u64,
    bits: u32,
}

impl Writer<'_> {
    /// Writes the next index.
    #[inline]
    pub(crate) fn push(&mut self, index: u32) {
        let index = index as usize;
        let position = (index >> self.low_bits) + self.written;
        self.high[position / 8] |= 1 << (position % 8);
        self.pending |= (index as u64 & ((1 << self.low_bits) - 1)) << self.bits;
        self.bits += self.low_bits;
        self.written += 1;
        while self.bits >= 32 || self.written == self.count && !self.low.is_empty() {
            self.flush();
        }
    }

    /// Writes four bytes of lower bits, or all that are left.
    fn flush(&mut self) {
        let bytes = self.pending.to_le_bytes();
        let length = self.low.len().min(4);
        let (own, rest) = std::mem::take(&mut self.low).split_at_mut(length);
        own.copy_from_slice(&bytes[..length]);
        self.low = rest;
        self.pending >>= 32;
        self.bits = self.bits.saturating_sub(32);
    }
}

/// Returns the positions of the bits that are set.
fn ones(bytes: &[u8]) -> impl Iterator<Item = usize> {
    bytes.chunks(8).enumerate().flat_map(|(at, bytes)| {
        let mut word = load(bytes);
        std::iter::from_fn(move || {
            let position = (word != 0).then(|| at * 64 + word.trailing_zeros() as usize);
            word &= word.wrapping_sub(1);
            position
        })
    })
}

fn low_part(low: &[u8], at: usize, low_bits: u32) -> usize {
    let bit = at * low_bits as usize;
    let bytes = &low[(bit / 8).min(low.len())..];
    let word = load(&bytes[..bytes.len().min(8)]) >> (bit % 8);
    (word & ((1 << low_bits) - 1)) as usize
}

/// Reads at most eight bytes as a number, little-endian.
fn load(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn corrupt(count: usize, universe: usize, what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{what} in {count} indices of {universe} elements"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn indices_read_back(picks in prop::collection::btree_set(0..5000u32, 0..600), extra in 0..70_000usize) {
            let universe = picks.last().map_or(0, |last| *last as usize + 1) + extra;
            let indices = Indices::new(picks.len(), universe);
            let mut bytes = vec![0xff; indices.encoded_len()];
            let mut writer = indices.writer(&mut bytes);
            picks.iter().for_each(|index| writer.push(*index));
            let read: Result<BTreeSet<u32>, _> = indices.read(&bytes).collect();
            prop_assert_eq!(read, Ok(picks));
        }

        #[test]
        fn any_bytes_give_sorted_indices_or_an_error(count in 0..50usize, extra in 0..9000usize, bytes: Vec<u8>) {
            let indices = Indices::new(count, count + extra);
            let bytes: Vec<u8> =
                bytes.into_iter().chain(std::iter::repeat(0x55)).take(indices.encoded_len()).collect();
            let read: Result<Vec<u32>, _> = indices.read(&bytes).collect();
            if let Ok(read) = read {
                prop_assert_eq!(read.len(), count);
                prop_assert!(read.is_sorted_by(|a, b| a < b));
                prop_assert!(read.iter().all(|index| (*index as usize) < count + extra));
            }
        }
    }

    #[test]
    fn one_percent_takes_less_than_nine_bits_each() {
        assert!(Indices::new(10_000, 1_000_000).encoded_len() * 8 < 9 * 10_000);
    }
}
