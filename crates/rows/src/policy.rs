//! Policies: which rows a cache keeps.
//!
//! | policy | keeps | from |
//! |---|---|---|
//! | [`Prefix`] | the rows `0..k`, for ids in the order of their worth | PaGraph, GNNLab, SALIENT++ order by degree, by frequency, by probability |
//! | [`Lru`] | the rows used last | |
//! | [`Sieve`] | rows that are used again while they wait to be replaced | Zhang et al., "SIEVE is Simpler than LRU" (NSDI 2024) |
//! | [`Foreseen`] | the rows used soonest, where the accesses to come are known | Belady, "A study of replacement algorithms for a virtual-storage computer" (1966) |

mod foreseen;
mod lru;
mod prefix;
mod sieve;

pub use foreseen::Foreseen;
pub use lru::Lru;
pub use prefix::Prefix;
pub use sieve::Sieve;

/// Decision which rows have the slots of a cache. A slot is a number below the number of slots that the
/// policy was made for, and keeps its row until [`admit`](Policy::admit) gives it to another.
pub trait Policy {
    /// Notes that a batch used the row of a slot; told once per batch.
    fn hit(&mut self, slot: u32);

    /// Chooses the slot of a row that has none, free or with the row that it replaces; `None` if the row is
    /// not to be kept.
    fn admit(&mut self, row: u64) -> Option<u32>;

    /// Notes that the next batch begins.
    fn begin(&mut self) {}

    /// Whether every row that is kept has the slot of its own number, so that the cache needs no table.
    fn is_direct(&self) -> bool {
        false
    }
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

    fn is_direct(&self) -> bool {
        (**self).is_direct()
    }
}
