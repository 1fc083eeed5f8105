//! Entropy-coded part of a message: symbols of one byte, with the table that decodes them.
//!
//! Format, little-endian: first and last symbol that occur (u8 each), the frequencies of all symbols from
//! the first to the last (u16 each, 4096 in sum), 32 states (u32 each), and words (u16 each) to the end of
//! the message.

use std::cell::RefCell;

use crate::kernel::imp;
use crate::kernel::rans::{
    DecodeTable, Decoder, EncodeTable, Encoder, Frequencies, STATES, TOTAL, normalise,
};

/// Most bytes before the words.
pub(crate) const TABLE_MAX: usize = 2 + 2 * 256 + 4 * STATES;

/// Encodes symbols, each of which occurs `counts[symbol]` times, at the beginning of `output`. Returns the
/// length, or none if they do not fit.
pub(crate) fn encode(symbols: &[u8], counts: &[u32; 256], output: &mut [u8]) -> Option<usize> {
    let frequencies = normalise(counts);
    let mut front = table(&frequencies);
    let (place, words) = output.split_at_mut_checked(front.len() + 4 * STATES)?;
    let mut coder = Encoder::new(words);
    imp().rans_encode(&mut coder, &EncodeTable::new(&frequencies), symbols);
    let (at, is_full) = (coder.at, coder.is_full);
    front.extend(coder.states.into_iter().flat_map(u32::to_le_bytes));
    place.copy_from_slice(&front);
    words.copy_within(at.., 0);
    (!is_full).then_some(front.len() + words.len() - at)
}

/// Decodes `symbols.len()` symbols; none if the bytes are no encoding of so many.
pub(crate) fn decode(bytes: &[u8], symbols: &mut [u8]) -> Option<()> {
    let (&[first, last], rest) = bytes.split_first_chunk::<2>()?;
    let count = usize::from(last).checked_sub(first.into())? + 1;
    let (table, rest) = rest.split_at_checked(2 * count)?;
    let mut frequencies = [0; 256];
    for (frequency, bytes) in frequencies[first.into()..].iter_mut().zip(table.as_chunks().0) {
        *frequency = u32::from(u16::from_le_bytes(*bytes)).min(TOTAL);
    }
    let (states, words) = rest.split_first_chunk::<{ 4 * STATES }>()?;
    let (states, _) = states.as_chunks::<4>();
    let states = std::array::from_fn(|state| u32::from_le_bytes(states[state]));
    let mut coder = Decoder::new(states, words)?;
    imp().rans_decode(&mut coder, &DecodeTable::new(&frequencies)?, symbols);
    coder.is_finished().then_some(())
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
