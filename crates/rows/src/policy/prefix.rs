//! Prefix: keeps the rows with the smallest ids, for rows that are numbered by descending benefit.

use super::Policy;

/// Policy that keeps the rows `0..slots` and never replaces one.
#[derive(Clone, Debug)]
pub struct Prefix {
    slots: u32,
}

impl Prefix {
    /// Creates a policy for this many slots.
    pub fn new(slots: u32) -> Prefix {
        Prefix { slots }
    }
}

impl Policy for Prefix {
    fn hit(&mut self, _slot: u32) {}

    fn admit(&mut self, row: u64) -> Option<u32> {
        (row < u64::from(self.slots)).then_some(row as u32)
    }

    fn is_direct(&self) -> bool {
        true
    }
}
