//! A thread that does what it is given, one thing after the other.
//!
//! The communication thread must never wait for the GIL, so whatever ends in Python goes through one
//! of these.

use std::fmt;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// The sending end. The thread ends when all of them are gone and everything is done.
#[derive(Clone)]
pub(crate) struct Background(Sender<Job>);

impl Background {
    /// Starts the thread.
    pub(crate) fn start() -> Background {
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::Builder::new().name("thinwire-reply".to_owned());
        thread
            .spawn(move || inbox.iter().for_each(|job| job()))
            .expect("the system starts a thread");
        Background(jobs)
    }

    /// Does `job` after all that came before it.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The thread lives as long as this end of the channel.
        let _ = self.0.send(Box::new(job));
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}
