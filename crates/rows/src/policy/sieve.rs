//! SIEVE: a queue that forgets the rows which nobody used again.
//!
//! Rows wait in the order of their admission. A hand goes over the queue from the oldest to the newest:
//! it spares a row that was used since it came by, and replaces the first that was not (Zhang et al.,
//! "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024,
//! algorithm 1). A hit moves nothing.

use super::Policy;
use crate::links::Links;

/// Policy that replaces the oldest row that was not used since the hand came by.
#[derive(Clone, Debug)]
pub struct Sieve {
    slots: u32,
    used: u32,
    /// The slots by their admission, the newest first, behind the number `slots`.
    links: Links,
    /// The slot to look at next; the number `slots` before the oldest.
    hand: u32,
    visited: Vec<bool>,
}

impl Sieve {
    /// The policy of a cache with this many slots.
    pub fn new(slots: u32) -> Sieve {
        let visited = vec![false; slots as usize];
        Sieve { slots, used: 0, links: Links::new(slots + 1), hand: slots, visited }
    }

    /// Moves the hand to the next slot to replace, takes it out of the queue and returns it.
    fn evict(&mut self) -> u32 {
        loop {
            let slot =
                if self.hand == self.slots { self.links.before(self.slots) } else { self.hand };
            self.hand = self.links.before(slot);
            if !std::mem::take(&mut self.visited[slot as usize]) {
                return slot;
            }
        }
    }
}

impl Policy for Sieve {
    fn hit(&mut self, slot: u32) {
        self.visited[slot as usize] = true;
    }

    fn admit(&mut self, _row: u64) -> Option<u32> {
        if self.slots == 0 {
            return None;
        }
        let slot = if self.used < self.slots { self.used } else { self.evict() };
        self.used = self.slots.min(self.used + 1);
        self.links.put_after(self.slots, slot);
        Some(slot)
    }
}
