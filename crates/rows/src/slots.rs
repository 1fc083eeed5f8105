//! Memory of a cache: slots, each with the state of its row and the row's bytes side by side.
//!
//! State and row of a slot are adjacent, so a lookup needs only one memory access for both.

use std::ops::Range;

/// Bytes of a slot before its row: row number and stamp.
pub const HEAD_BYTES: usize = 16;

/// Row number of an empty slot.
pub const NO_ROW: u64 = u64::MAX;

const ROW: Range<usize> = 0..8;
const STAMP: Range<usize> = 8..16;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Row in the slot, or [`NO_ROW`].
    pub row: u64,
    /// Time of the value plus 1; 0 if the value must not be used.
    pub stamp: u64,
}

/// Slots of a cache.
#[derive(Clone, Debug)]
pub struct Slots {
    width: usize,
    bytes: Vec<u8>,
}

impl Slots {
    /// Creates empty slots.
    pub fn new(count: u32, width: usize) -> Slots {
        let mut slots = Slots { width, bytes: vec![0; count as usize * (HEAD_BYTES + width)] };
        (0..count).for_each(|slot| slots.put(slot, ROW, NO_ROW));
        slots
    }

    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.bytes.len() / (HEAD_BYTES + self.width)
    }

    /// Returns the memory of the slots, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the state of a slot.
    #[inline]
    pub fn head(&self, slot: u32) -> Head {
        Head { row: self.get(slot, ROW), stamp: self.get(slot, STAMP) }
    }

    /// Reads the states of slots. For a number that is not a slot, any state is returned. It does nothing
    /// else, so that memory accesses overlap and the rows are already being loaded when they are copied.
    pub fn read_heads(&self, slots: &[u32], heads: &mut [Head]) {
        let Some(last) = self.count().checked_sub(1) else { return };
        let pairs = heads.iter_mut().zip(slots);
        pairs.for_each(|(head, slot)| *head = self.head((*slot).min(last as u32)));
    }

    /// Returns the bytes of a slot's row.
    #[inline]
    pub fn value(&self, slot: u32) -> &[u8] {
        &self.bytes[self.start(slot) + HEAD_BYTES..][..self.width]
    }

    /// Assigns a slot to a row without a value yet. Returns the previous row.
    pub fn assign(&mut self, slot: u32, row: u64) -> u64 {
        let old = self.head(slot).row;
        self.put(slot, ROW, row);
        self.put(slot, STAMP, 0);
        old
    }

    /// Overwrites the value of a slot unless the slot has a newer one.
    pub fn refresh(&mut self, slot: u32, value: &[u8], stamp: u64) {
        if self.head(slot).stamp <= stamp {
            self.put(slot, STAMP, stamp);
            let start = self.start(slot) + HEAD_BYTES;
            self.bytes[start..][..self.width].copy_from_slice(value);
        }
    }

    /// Marks the value of a slot as unusable.
    pub fn forget(&mut self, slot: u32) {
        self.put(slot, STAMP, 0);
    }

    #[inline]
    fn start(&self, slot: u32) -> usize {
        slot as usize * (HEAD_BYTES + self.width)
    }

    #[inline]
    fn get(&self, slot: u32, field: Range<usize>) -> u64 {
        let head = &self.bytes[self.start(slot)..][..HEAD_BYTES];
        u64::from_ne_bytes(head[field].try_into().expect("a field has eight bytes"))
    }

    fn put(&mut self, slot: u32, field: Range<usize>, value: u64) {
        let start = self.start(slot);
        self.bytes[start..][..HEAD_BYTES][field].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Bits of a word.
const BITS: u32 = u64::BITS;

/// Set of the slots that one lookup has used, with a bit each, small enough for the processor's cache. Every
/// lookup fills and clears it.
#[derive(Clone, Debug)]
pub struct Seen {
    words: Vec<u64>,
    /// The slots of the set.
    slots: Vec<u32>,
}

impl Seen {
    /// Memory in bytes per slot, for the worst case of one slot per word.
    pub const SLOT_BYTES: usize = size_of::<u64>() + size_of::<u32>();

    /// Creates an empty set for this many slots.
    pub fn new(slots: u32) -> Seen {
        let words = vec![0; slots.div_ceil(BITS) as usize];
        Seen { words, slots: Vec::with_capacity(slots as usize) }
    }

    /// Adds a slot. Returns whether it is new.
    #[inline]
    pub fn insert(&mut self, slot: u32) -> bool {
        let word = &mut self.words[(slot / BITS) as usize];
        let bit = 1 << (slot % BITS);
        let fresh = *word & bit == 0;
        if fresh {
            *word |= bit;
            self.slots.push(slot);
        }
        fresh
    }

    /// Removes all slots.
    pub fn clear(&mut self) {
        for slot in self.slots.drain(..) {
            self.words[(slot / BITS) as usize] = 0;
        }
    }

    /// Returns the memory of the set, in bytes.
    pub fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>() + self.slots.capacity() * size_of::<u32>()
    }
}
