//! Policies: which rows a cache keeps.
//!
//! | policy | keeps | from |
//! |---|---|---|
//! | [`Lru`] | the rows used last | |
//! | [`Sieve`] | rows that are used again while they wait to be replaced | Zhang et al., "SIEVE is Simpler than LRU" (NSDI 2024) |
//! | [`Foreseen`] | the rows used soonest, if the accesses to come are known | Belady, "A study of replacement algorithms for a virtual-storage computer" (1966) |

mod foreseen;
mod lru;
mod sieve;

pub use foreseen::Foreseen;
pub use lru::Lru;
pub use sieve::Sieve;

/// Replacement policy of a cache. Slots are numbered below the number that the policy was created for. A row
/// keeps its slot until [`admit`](Policy::admit) assigns the slot to another.
pub trait Policy {
    /// Records that a batch used the row in a slot; called at most once per slot and batch.
    fn hit(&mut self, slot: u32);

    /// Returns the slot for a row that has none: a free one, or one whose row is replaced. `None` if the row
    /// is not to be cached.
    fn admit(&mut self, row: u64) -> Option<u32>;

    /// Records that the next batch begins.
    fn begin(&mut self) {}
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn hit(&mut self, slot: u32) {
        (**self).hit(slot);
    }

    fn admit(&mut self, row: u64) -> Option<u32> {
        (**self).admit(row)
    }

    fn begin(&mut self) {
        (**self).begin();
    }
}

/// Rings of slots: doubly linked lists in one array. Every number is in exactly one ring, possibly alone.
#[derive(Clone, Debug)]
pub struct Links {
    /// Previous and next number of each number.
    around: Vec<[u32; 2]>,
}

impl Links {
    /// Creates rings of the numbers `0..count`, each alone.
    pub fn new(count: u32) -> Links {
        Links { around: (0..count).map(|number| [number; 2]).collect() }
    }

    /// Returns the memory of the rings, in bytes.
    pub fn bytes(&self) -> usize {
        self.around.capacity() * size_of::<[u32; 2]>()
    }

    /// Returns the number before this one.
    pub fn before(&self, number: u32) -> u32 {
        self.around[number as usize][0]
    }

    /// Returns the number after this one.
    pub fn after(&self, number: u32) -> u32 {
        self.around[number as usize][1]
    }

    /// Removes a number from its ring; it is alone afterwards.
    pub fn take_out(&mut self, number: u32) {
        let [before, after] = self.around[number as usize];
        self.around[before as usize][1] = after;
        self.around[after as usize][0] = before;
        self.around[number as usize] = [number; 2];
    }

    /// Moves a number out of its ring to the place after `other`.
    pub fn put_after(&mut self, other: u32, number: u32) {
        self.take_out(number);
        let after = self.after(other);
        self.around[number as usize] = [other, after];
        self.around[other as usize][1] = number;
        self.around[after as usize][0] = number;
    }
}
