//! Queue of numbered values that may arrive in any order and are taken in the order of their numbers.
//!
//! It holds the values of `capacity` consecutive numbers. A thread that puts a later value waits, so
//! there is always room for the value that is taken next. When the queue is closed, every wait ends;
//! values that are in the queue and next in order can still be taken.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::batch::lock;

/// Bounded queue that restores the order of its values.
#[derive(Debug)]
pub struct Queue<T> {
    capacity: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Number of the value that is taken next.
    first: u64,
    values: VecDeque<Option<T>>,
    closed: bool,
}

impl<T> Queue<T> {
    /// Creates a queue that first has room for the values `0..capacity`, at least one.
    pub fn new(capacity: usize) -> Queue<T> {
        let state = State { first: 0, values: VecDeque::new(), closed: false };
        Queue { capacity: capacity.max(1), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Puts a value with a new number, once there is room. Returns false if the queue is closed.
    pub fn put(&self, number: u64, value: T) -> bool {
        let mut state = self.lock();
        while !state.closed && number >= state.first + self.capacity as u64 {
            state = self.wait(state);
        }
        if state.closed {
            return false;
        }
        let place = (number - state.first) as usize;
        if state.values.len() <= place {
            state.values.resize_with(place + 1, || None);
        }
        state.values[place] = Some(value);
        self.changed.notify_all();
        true
    }

    /// Takes the next value, waiting until it is in the queue. Returns `None` if the queue is closed and
    /// does not have the value.
    pub fn take(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            let next = self.next(&mut state);
            if next.is_some() || state.closed {
                return next;
            }
            state = self.wait(state);
        }
    }

    /// Takes the next value if it is there.
    pub fn try_take(&self) -> Option<T> {
        self.next(&mut self.lock())
    }

    fn next(&self, state: &mut State<T>) -> Option<T> {
        let value = state.values.front_mut().and_then(Option::take)?;
        state.values.pop_front();
        state.first += 1;
        self.changed.notify_all();
        Some(value)
    }

    /// Closes the queue, so that no further values can be put.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Guard that closes queues when its thread ends, also by a panic.
pub struct Closing<'a, A, B>(pub &'a Queue<A>, pub &'a Queue<B>);

impl<A, B> Drop for Closing<'_, A, B> {
    fn drop(&mut self) {
        self.0.close();
        self.1.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_in_order_from_any_thread() {
        let queue = Queue::new(2);
        let next = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if number >= 500 || !queue.put(number, number) {
                            return;
                        }
                    }
                });
            }
            for number in 0..500 {
                assert!(queue.lock().values.len() <= 2, "values beyond the capacity");
                assert_eq!(queue.take(), Some(number));
            }
        });
    }

    #[test]
    fn a_closed_queue_ends_every_wait() {
        let queue = Queue::new(1);
        assert_eq!(queue.try_take(), None);
        assert!(queue.put(0, 'a'));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| queue.put(1, 'b'));
            let closing = Closing(&queue, &queue);
            drop(closing);
            assert!(!blocked.join().unwrap());
        });
        assert!(!queue.put(0, 'c'));
        assert_eq!((queue.try_take(), queue.try_take(), queue.take()), (Some('a'), None, None));
    }
}
