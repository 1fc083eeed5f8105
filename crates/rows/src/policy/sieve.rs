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

    /// Takes the slot to replace out of the queue: for owners of slots that have room for some of them at a
    /// time, and put in what they keep. `None` if the queue is empty.
    pub fn evict(&mut self) -> Option<u32> {
        loop {
            let slot =
                if self.hand == self.slots { self.links.before(self.slots) } else { self.hand };
            if slot == self.slots {
                return None;
            }
            self.hand = self.links.before(slot);
            if !std::mem::take(&mut self.visited[slot as usize]) {
                self.links.take_out(slot);
                return Some(slot);
            }
        }
    }

    /// Puts a slot that is not in the queue into it, as the newest.
    pub fn put(&mut self, slot: u32) {
        self.links.put_after(self.slots, slot);
    }

    /// Returns the memory of the policy, in bytes.
    pub fn bytes(&self) -> usize {
        self.links.bytes() + self.visited.capacity()
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
        let slot = if self.used < self.slots { self.used } else { self.evict()? };
        self.used = self.slots.min(self.used + 1);
        self.put(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_in_the_order_in_which_they_came_but_for_those_used_since() {
        let mut sieve = Sieve::new(5);
        assert_eq!(sieve.evict(), None);
        [3, 1, 4].into_iter().for_each(|slot| sieve.put(slot));
        sieve.hit(3);
        assert_eq!([sieve.evict(), sieve.evict()], [Some(1), Some(4)]);
        sieve.put(0);
        sieve.hit(0);
        // The hand has gone by all of them, and begins again with the oldest.
        assert_eq!([sieve.evict(), sieve.evict(), sieve.evict()], [Some(3), Some(0), None]);
        sieve.put(3);
        assert_eq!([sieve.evict(), sieve.evict()], [Some(3), None]);
    }
}
