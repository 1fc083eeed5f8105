//! Growing pauses between attempts.

use std::time::Duration;

/// Pauses between attempts, each twice as long as the one before, up to a limit.
///
/// ```
/// use std::time::Duration;
/// use thinwire_link::Backoff;
///
/// let [first, most] = [20, 50].map(Duration::from_millis);
/// let mut backoff = Backoff::new(first, most);
/// assert_eq!([backoff.pause(), backoff.pause(), backoff.pause()], [first, 2 * first, most]);
/// backoff.reset();
/// assert_eq!(backoff.pause(), first);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Returns pauses from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most, next: first.min(most) }
    }

    /// Returns the next pause.
    pub fn pause(&mut self) -> Duration {
        let next = self.next;
        self.next = (2 * next).min(self.most);
        next
    }

    /// Starts over, after an attempt that succeeded.
    pub fn reset(&mut self) {
        self.next = self.first.min(self.most);
    }
}

impl Default for Backoff {
    /// Returns pauses from 20 ms to 1 s, as between attempts to connect.
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(20), Duration::from_secs(1))
    }
}
