//! SIEVE: a queue that evicts rows which were not used again.
//!
//! Rows are queued in the order of their admission. A hand moves from the oldest to the newest row, spares
//! rows that were used since its last visit, and evicts the first that was not (Zhang et al., "SIEVE is
//! Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024, algorithm 1). A hit
//! moves nothing.

use super::{Links, Policy};

/// Policy that replaces the oldest row that was not used since the hand's last visit.
#[derive(Clone, Debug)]
pub struct Sieve {
    slots: u32,
    used: u32,
    /// Ring of slots in the order of admission, newest first, after the number `slots`.
    links: Links,
    /// Slot to visit next; the number `slots` stands for the oldest.
    hand: u32,
    visited: Vec<bool>,
}

impl Sieve {
    /// Creates a policy for this many slots.
    pub fn new(slots: u32) -> Sieve {
        let visited = vec![false; slots as usize];
        Sieve { slots, used: 0, links: Links::new(slots + 1), hand: slots, visited }
    }

    /// Removes the slot to replace from the queue; `None` if the queue is empty. For owners that manage slots
    /// themselves and [`put`](Sieve::put) only occupied ones.
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

    /// Adds a slot that is not in the queue, as the newest.
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
        // The hand has passed all slots, and starts again at the oldest.
        assert_eq!([sieve.evict(), sieve.evict(), sieve.evict()], [Some(3), Some(0), None]);
        sieve.put(3);
        assert_eq!([sieve.evict(), sieve.evict()], [Some(3), None]);
    }
}
