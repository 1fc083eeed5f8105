//! Rings of slots: doubly linked lists in one array.

/// Rings of numbers. Every number is in exactly one ring, possibly alone.
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
