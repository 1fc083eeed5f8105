//! Signals by which a user asks a process to end early, in good order.
//!
//! While ranks meet, a SIGINT or SIGTERM ends the process at once, since ranks cannot agree on a
//! last step yet. After that the first signal is remembered, and the ranks agree on the step after
//! which all stop; a second signal ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::Error;

/// Remembers the first signal.
#[derive(Clone, Debug)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// Whether the next signal ends the process.
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen. Until [`Interrupt::remember`] is called, every signal ends the process.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> Result<Interrupt, Error> {
        let signal = Arc::new(AtomicUsize::new(0));
        let at_once = Arc::new(AtomicBool::new(true));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first handler must not see what the second one sets for the next signal.
            let code = 128 + number;
            flag::register_conditional_shutdown(number, code, Arc::clone(&at_once))
                .and_then(|_| flag::register(number, Arc::clone(&at_once)))
                .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
                .map_err(|error| Error::because("listening for signals", error))?;
        }
        Ok(Interrupt { signal, at_once })
    }

    /// Remembers the first signal from now on; call this once all ranks have met.
    pub fn remember(&self) {
        self.at_once.store(self.signal().is_some(), Ordering::Relaxed);
    }

    /// Lets signals end the process until [`Interrupt::remember`], while ranks meet once more.
    pub fn end_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// Returns the signal that came, if any.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Returns the name of the signal that came, if any.
    pub fn name(&self) -> Option<&'static str> {
        self.signal().map(|signal| low_level::signal_name(signal).unwrap_or("a signal"))
    }

    /// Records that another rank was told to stop.
    pub fn follow(&self, signal: i32) {
        self.signal.store(signal as usize, Ordering::Relaxed);
    }

    /// Returns the exit code: 0, or 128 + signal.
    pub fn exit_code(&self) -> u8 {
        self.signal().map_or(0, |signal| (128 + signal) as u8)
    }
}
