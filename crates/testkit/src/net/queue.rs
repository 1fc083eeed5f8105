//! Events to come, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Queue of values with times in nanoseconds; equal times keep the order of pushing.
pub(super) struct Queue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    // Values lie beside the heap, which moves small keys only.
    values: Vec<Option<T>>,
    free: Vec<usize>,
    pushed: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        Queue { heap: BinaryHeap::new(), values: Vec::new(), free: Vec::new(), pushed: 0 }
    }

    pub(super) fn push(&mut self, at: u64, value: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() - 1
        });
        self.values[slot] = Some(value);
        self.heap.push(Reverse((at, self.pushed, slot)));
        self.pushed += 1;
    }

    /// Removes and returns the next value with its time, if it is due by `end`.
    pub(super) fn pop(&mut self, end: u64) -> Option<(u64, T)> {
        let Reverse((at, _, slot)) = *self.heap.peek()?;
        if at > end {
            return None;
        }
        self.heap.pop();
        self.free.push(slot);
        Some((at, self.values[slot].take().expect("a slot in the heap has a value")))
    }
}
