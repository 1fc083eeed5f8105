//! Set of the slots that one lookup has used, with a bit each, small enough for the processor's cache.

/// Bits of a word.
const BITS: u32 = u64::BITS;

/// Set of slots, filled and cleared by every lookup.
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
