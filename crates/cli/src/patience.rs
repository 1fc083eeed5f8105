//! Message to the user when an operation takes long.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// An operation that may take long. The operation ends when this value is dropped.
pub struct Patience(#[expect(dead_code, reason = "dropping it ends the thread")] Sender<()>);

impl Patience {
    /// Calls `tell` from another thread, unless this value is dropped within `time`.
    pub fn new(time: Duration, tell: impl FnOnce() + Send + 'static) -> Patience {
        let (sender, ended) = channel();
        thread::spawn(move || {
            if ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        });
        Patience(sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_long_is_told() {
        let (sender, told) = channel();
        let tell = |what: &'static str| {
            let sender = sender.clone();
            move || sender.send(what).unwrap()
        };
        drop(Patience::new(Duration::from_secs(3600), tell("short")));
        let long = Patience::new(Duration::ZERO, tell("long"));
        assert_eq!(told.recv(), Ok("long"));
        drop((long, sender));
        assert!(told.recv().is_err());
    }
}
