//! Policies: which rows a cache keeps.
//!
//! | policy | keeps | from |
//! |---|---|---|
//! | [`Lru`] | the rows used last | |
//! | [`Sieve`] | rows that are used again while they wait to be replaced | Zhang et al., "SIEVE is Simpler than LRU" (NSDI 2024) |
//! | [`Foreseen`] | the rows used soonest, where the accesses to come are known | Belady, "A study of replacement algorithms for a virtual-storage computer" (1966) |

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
