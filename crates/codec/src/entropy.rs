//! Entropy-coded part of a message: symbols of one byte, with the table that decodes them.
//!
//! Symbols are coded in streams of 16,384, all with one table, so that a device codes many at once, each
//! with a warp.
//!
//! Format, little-endian: first and last symbol that occur (u8 each), the frequencies of all symbols from
//! the first to the last (u16 each, 4096 in sum), the number of words of every stream (u16 each), and for
//! every stream 32 states (u32 each) and its words (u16 each).

use std::cell::RefCell;

use crate::kernel::imp;
use crate::kernel::rans::{
    DecodeTable, Decoder, EncodeTable, Encoder, Frequencies, STATES, TOTAL, normalise,
};

/// Symbols of a stream. Each gives one word at most, so that their number fits a u16.
const STREAM: usize = 1 << 14;

/// Bytes of the states of a stream.
const STATE_BYTES: usize = 4 * STATES;

/// Returns the largest number of bytes of an encoding that are not words.
pub(crate) fn overhead_max(symbols: usize) -> usize {
    2 + 2 * 256 + (2 + STATE_BYTES) * symbols.div_ceil(STREAM)
}

/// Encodes symbols, each of which occurs `counts[symbol]` times, at the beginning of `output`. Returns the
/// length, or `None` if they do not fit.
pub(crate) fn encode(symbols: &[u8], counts: &[u32; 256], output: &mut [u8]) -> Option<usize> {
    let frequencies = normalise(counts);
    let encode_table = EncodeTable::new(&frequencies);
    let table = table(&frequencies);
    let (place, rest) = output.split_at_mut_checked(table.len())?;
    place.copy_from_slice(&table);
    let (lengths, rest) = rest.split_at_mut_checked(2 * symbols.len().div_ceil(STREAM))?;
    let mut done = 0;
    for (stream, length) in symbols.chunks(STREAM).zip(lengths.as_chunks_mut().0) {
        let (states, words) = rest[done..].split_first_chunk_mut::<STATE_BYTES>()?;
        let mut coder = Encoder::new(words);
        imp().rans_encode(&mut coder, &encode_table, stream);
        let (at, is_full) = (coder.at, coder.is_full);
        if is_full {
            return None;
        }
        for (place, state) in states.as_chunks_mut().0.iter_mut().zip(coder.states) {
            *place = state.to_le_bytes();
        }
        words.copy_within(at.., 0);
        let bytes = words.len() - at;
        *length = u16::try_from(bytes / 2).ok()?.to_le_bytes();
        done += STATE_BYTES + bytes;
    }
    Some(table.len() + 2 * symbols.len().div_ceil(STREAM) + done)
}

/// Decodes `symbols.len()` symbols; returns `None` if the bytes do not encode this many symbols.
pub(crate) fn decode(bytes: &[u8], symbols: &mut [u8]) -> Option<()> {
    let (&[first, last], rest) = bytes.split_first_chunk::<2>()?;
    let count = usize::from(last).checked_sub(first.into())? + 1;
    let (table, rest) = rest.split_at_checked(2 * count)?;
    let mut frequencies = [0; 256];
    for (frequency, bytes) in frequencies[first.into()..].iter_mut().zip(table.as_chunks().0) {
        *frequency = u32::from(u16::from_le_bytes(*bytes)).min(TOTAL);
    }
    let table = DecodeTable::new(&frequencies)?;
    let (lengths, mut rest) = rest.split_at_checked(2 * symbols.len().div_ceil(STREAM))?;
    for (stream, length) in symbols.chunks_mut(STREAM).zip(lengths.as_chunks().0) {
        let (states, words) = rest.split_first_chunk::<STATE_BYTES>()?;
        let (states, _) = states.as_chunks::<4>();
        let states = std::array::from_fn(|state| u32::from_le_bytes(states[state]));
        let end = 2 * usize::from(u16::from_le_bytes(*length));
        let mut coder = Decoder::new(states, words, end)?;
        imp().rans_decode(&mut coder, &table, stream);
        rest = coder.is_finished().then(|| &words[end..])?;
    }
    rest.is_empty().then_some(())
}

/// Calls `body` with `length` bytes of any content. Each thread keeps the most bytes that it ever needed,
/// because first touching new memory takes as long as encoding into it.
///
/// # Panics
/// If `body` calls this function, too.
pub(crate) fn with_scratch<T>(length: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    BYTES.with_borrow_mut(|bytes| {
        if bytes.len() < length {
            bytes.resize(length, 0);
        }
        body(&mut bytes[..length])
    })
}

/// Returns the bytes of the table: the first and the last symbol that occur, and the frequencies.
fn table(frequencies: &Frequencies) -> Vec<u8> {
    let used = || (0..=u8::MAX).filter(|symbol| frequencies[usize::from(*symbol)] > 0);
    let (first, last) = (used().next().unwrap_or(0), used().next_back().unwrap_or(0));
    let of_range = &frequencies[first.into()..=last.into()];
    let bytes = of_range.iter().flat_map(|frequency| (*frequency as u16).to_le_bytes());
    [first, last].into_iter().chain(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rans::histogram;

    #[test]
    fn streams_read_back_and_other_lengths_are_refused() {
        let symbols: Vec<u8> = (0..2 * STREAM + 77).map(|at| (at * at / 5 % 23) as u8).collect();
        let mut bytes = vec![0; overhead_max(symbols.len()) + symbols.len()];
        let length = encode(&symbols, &histogram(&symbols), &mut bytes).unwrap();
        let decoded = |bytes: &[u8]| {
            let mut symbols = vec![0; symbols.len()];
            decode(bytes, &mut symbols).map(|()| symbols)
        };
        assert_eq!(decoded(&bytes[..length]).as_ref(), Some(&symbols));
        assert_eq!(encode(&symbols, &histogram(&symbols), &mut bytes[..length]), Some(length));
        assert_eq!(encode(&symbols, &histogram(&symbols), &mut bytes[..length - 1]), None);
        let length = encode(&symbols, &histogram(&symbols), &mut bytes).unwrap();
        assert_eq!(decoded(&bytes[..length - 2]), None);
        assert_eq!(decoded(&bytes[..length + 1]), None);
        // Words that one stream lacks and another has too many of.
        let head = 2 + 2 * 23;
        (bytes[head], bytes[head + 2]) =
            (bytes[head].wrapping_sub(1), bytes[head + 2].wrapping_add(1));
        assert_eq!(decoded(&bytes[..length]), None);
    }
}
