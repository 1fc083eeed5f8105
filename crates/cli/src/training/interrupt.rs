//! The wish to end early, in good order.
//!
//! While ranks meet, a SIGINT or SIGTERM ends the process at once: nobody could agree on anything yet.
//! From then on a first one is remembered, and the ranks agree after which step they all stop; a second
//! one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Remembers the first signal.
#[derive(Clone, Debug)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// The next signal ends the process.
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on; until [`Interrupt::remember`] every signal ends the process.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> Result<Interrupt> {
        let signal = Arc::new(AtomicUsize::new(0));
        let at_once = Arc::new(AtomicBool::new(true));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            let code = 128 + number;
            flag::register_conditional_shutdown(number, code, Arc::clone(&at_once))
                .and_then(|_| flag::register(number, Arc::clone(&at_once)))
                .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
                .context("listening for signals")?;
        }
        Ok(Interrupt { signal, at_once })
    }

    /// From now on, with all ranks met, the first signal is remembered.
    pub fn remember(&self) {
        self.at_once.store(self.signal().is_some(), Ordering::Relaxed);
    }

    /// The ranks meet once more: a signal ends the process until [`Interrupt::remember`].
    pub fn end_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// The signal that came, if any.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Takes note that another rank was told to stop.
    pub fn follow(&self, signal: i32) {
        self.signal.store(signal as usize, Ordering::Relaxed);
    }

    /// 0, or 128 + signal.
    pub fn exit_code(&self) -> u8 {
        self.signal().map_or(0, |signal| (128 + signal) as u8)
    }
}
