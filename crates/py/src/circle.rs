//! What belongs together: a group, its splits, its synchronisers.
//!
//! They end together: an abort reaches all of them, and so does the goodbye at the end of the
//! process. A fork does not carry them over, because it has none of their threads.

use std::sync::{Arc, Mutex};

use thinwire_collective::Stop;

use crate::error::Failure;

type Close = Box<dyn Fn() + Send>;

/// Everything that was made from one group.
pub(crate) struct Circle {
    process: u32,
    stops: Mutex<Vec<Stop>>,
    closes: Mutex<Vec<Close>>,
}

impl Circle {
    pub(crate) fn new() -> Circle {
        let process = std::process::id();
        Circle { process, stops: Mutex::default(), closes: Mutex::default() }
    }

    /// Adds a member: how to abort it, and how to close it.
    pub(crate) fn add(&self, stop: Stop, close: impl Fn() + Send + 'static) {
        self.stops.lock().expect("no holder panics").push(stop);
        self.closes.lock().expect("no holder panics").push(Box::new(close));
    }

    /// Adds a member that is closed by taking it out of its cell.
    pub(crate) fn add_cell<T: Send + 'static>(&self, stop: Stop, cell: &Arc<Mutex<Option<T>>>) {
        let cell = Arc::downgrade(cell);
        self.add(stop, move || {
            if let Some(cell) = cell.upgrade() {
                drop(cell.lock().expect("no holder panics").take());
            }
        });
    }

    /// Aborts all members: every peer gets `reason`.
    pub(crate) fn abort(&self, reason: &str) {
        self.stops.lock().expect("no holder panics").iter().for_each(|stop| stop.stop(reason));
    }

    /// Closes all members.
    pub(crate) fn close(&self) {
        let closes = std::mem::take(&mut *self.closes.lock().expect("no holder panics"));
        closes.iter().for_each(|close| close());
    }

    /// Whether this is a fork of the process that made it.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Refuses a fork.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.is_forked() {
            return Ok(());
        }
        let (owner, this) = (self.process, std::process::id());
        Err(Failure::Invalid(format!(
            "a group of process {owner} is used in its fork {this}, which has no part in it (hint: \
             use it in the parent only, or call thinwire.init() in a process of its own)"
        )))
    }
}
