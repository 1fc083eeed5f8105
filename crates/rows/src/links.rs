//! Rings of slots: doubly linked lists in one array.

/// Rings of numbers. Each is in one ring, or alone in a ring of its own.
#[derive(Clone, Debug)]
pub struct Links {
    /// Of each number, the one before it and the one after it.
    around: Vec<[u32; 2]>,
}

impl Links {
    /// The numbers `0..count`, each alone.
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

    /// Takes a number out of its ring, so that it is alone.
    pub fn take_out(&mut self, number: u32) {
        let [before, after] = self.around[number as usize];
        self.around[before as usize][1] = after;
        self.around[after as usize][0] = before;
        self.around[number as usize] = [number; 2];
    }

    /// Moves a number behind another.
    pub fn put_after(&mut self, other: u32, number: u32) {
        self.take_out(number);
        let after = self.after(other);
        self.around[number as usize] = [other, after];
        self.around[other as usize][1] = number;
        self.around[after as usize][0] = number;
    }
}
