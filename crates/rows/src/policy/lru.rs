//! LRU: the rows used last.

use super::Policy;
use crate::links::Links;

/// Policy that replaces the row whose last use is longest ago.
#[derive(Clone, Debug)]
pub struct Lru {
    slots: u32,
    used: u32,
    /// The slots by their last use, the last one first, behind the number `slots`.
    links: Links,
}

impl Lru {
    /// The policy of a cache with this many slots.
    pub fn new(slots: u32) -> Lru {
        Lru { slots, used: 0, links: Links::new(slots + 1) }
    }
}

impl Policy for Lru {
    fn hit(&mut self, slot: u32) {
        self.links.put_after(self.slots, slot);
    }

    fn admit(&mut self, _row: u64) -> Option<u32> {
        if self.slots == 0 {
            return None;
        }
        let slot = if self.used < self.slots { self.used } else { self.links.before(self.slots) };
        self.used = self.slots.min(self.used + 1);
        self.links.put_after(self.slots, slot);
        Some(slot)
    }
}
