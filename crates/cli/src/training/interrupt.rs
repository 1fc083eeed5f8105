//! The wish to end early, in good order.
//!
//! A first SIGINT or SIGTERM is remembered, and the ranks agree after which step they all stop; a
//! second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Remembers the first signal.
#[derive(Clone, Debug)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> Result<Interrupt> {
        let signal = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            let code = 128 + number;
            flag::register_conditional_shutdown(number, code, Arc::clone(&again))
                .and_then(|_| flag::register(number, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
                .context("listening for signals")?;
        }
        Ok(Interrupt { signal })
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
