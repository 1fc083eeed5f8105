//! LRU: keeps the most recently used rows.
//!
//! Uses form a queue. Only the last use of a slot counts, so a use is appended without searching for the
//! previous one.

use std::collections::VecDeque;

use super::Policy;

/// Largest length of the queue, in uses per slot.
const USES_PER_SLOT: usize = 4;

/// Policy that replaces the least recently used row.
#[derive(Clone, Debug)]
pub struct Lru {
    slots: u32,
    used: u32,
    /// Uses of slots, oldest first.
    uses: VecDeque<u32>,
    /// Number of the first element of `uses`, modulo 2^32.
    first: u32,
    /// Number of the last use of each slot.
    last: Vec<u32>,
}

impl Lru {
    /// Creates a policy for this many slots.
    pub fn new(slots: u32) -> Lru {
        let uses = VecDeque::with_capacity(USES_PER_SLOT * slots as usize);
        Lru { slots, used: 0, uses, first: 0, last: vec![0; slots as usize] }
    }

    fn touch(&mut self, slot: u32) {
        if self.uses.len() == USES_PER_SLOT * self.slots as usize {
            self.compact();
        }
        self.last[slot as usize] = self.first.wrapping_add(self.uses.len() as u32);
        self.uses.push_back(slot);
    }

    /// Removes uses that are not the last of their slot.
    fn compact(&mut self) {
        let Lru { uses, first, last, .. } = self;
        let uses_in_order = uses.make_contiguous();
        let mut kept = 0;
        for at in 0..uses_in_order.len() {
            let slot = uses_in_order[at];
            let number = &mut last[slot as usize];
            let is_last = *number == first.wrapping_add(at as u32);
            // Without a branch, which would be unpredictable.
            *number = if is_last { first.wrapping_add(kept as u32) } else { *number };
            uses_in_order[kept] = slot;
            kept += usize::from(is_last);
        }
        uses.truncate(kept);
    }

    fn evict(&mut self) -> u32 {
        loop {
            let slot = self.uses.pop_front().expect("every used slot has a last use");
            let number = self.first;
            self.first = number.wrapping_add(1);
            if self.last[slot as usize] == number {
                return slot;
            }
        }
    }
}

impl Policy for Lru {
    fn hit(&mut self, slot: u32) {
        self.touch(slot);
    }

    fn admit(&mut self, _row: u64) -> Option<u32> {
        if self.slots == 0 {
            return None;
        }
        let slot = if self.used < self.slots { self.used } else { self.evict() };
        self.used = self.slots.min(self.used + 1);
        self.touch(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_uses_is_bounded() {
        let mut lru = Lru::new(3);
        let capacity = lru.uses.capacity();
        (0..3).for_each(|row| assert!(lru.admit(row).is_some()));
        for number in 0..1000 {
            lru.hit(number % 3);
            assert!(lru.uses.len() <= 3 * USES_PER_SLOT);
        }
        assert_eq!((lru.uses.capacity(), lru.admit(9)), (capacity, Some(1)));
    }
}
