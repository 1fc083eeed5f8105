//! A thread that carries out jobs, one after the other.
//!
//! The communication thread must never wait for the GIL, so every job that ends in Python goes through
//! such a thread.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use thinwire_collective::Stop;

use crate::error::Failure;
use crate::wait;

/// Number of jobs of all threads that are not yet done.
static UNDONE: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Longest time for which Python waits at its end for jobs under way.
const SETTLING_MAX: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// Sending end of the queue of the thread's jobs. The thread ends when all sending ends are gone
/// and all jobs are done.
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

    /// Does `job` after all earlier jobs.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The thread lives as long as this end of the channel.
        let undone = Undone::new();
        let _ = self.0.send(Box::new(move || {
            job();
            drop(undone);
        }));
    }

    /// Does `work` as [`Background::run`] does, and waits for its answer. A signal ends the group of
    /// `stop`.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        stop: &Stop,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        let (reply, answer) = channel();
        // Nobody listens any more after a signal.
        self.run(move || drop(reply.send(work())));
        wait::for_answer(py, answer, stop)
    }

    /// Does `work`, then calls `done(error)`, or `done(error, answer)` if there is an answer.
    pub(crate) fn answer(
        &self,
        done: Py<PyAny>,
        work: impl FnOnce() -> Result<Option<bool>, Failure> + Send + 'static,
    ) {
        self.run(move || call(done, work()));
    }

    /// Logs a line by Python's `logging` as a warning. Loggers show warnings unless the program
    /// changes that.
    pub(crate) fn log(&self, text: impl Into<String>) {
        let text = text.into();
        self.run(move || {
            let logged = Python::try_attach(|py| {
                let logger = py.import("logging")?.call_method1("getLogger", ("thinwire",))?;
                // The text may have percent signs.
                logger.call_method1("warning", ("%s", &text)).map(drop)
            });
            // Without an interpreter somebody may still read this.
            if !matches!(logged, Some(Ok(()))) {
                eprintln!("thinwire: {text}");
            }
        });
    }
}

/// Lets warnings of links be logged too, in programs other than the command.
pub(crate) fn log_warnings() {
    // The endpoint must not wait for the GIL, and a fork has no thread of its parent's.
    thinwire_link::log_warnings_by(|text| Background::start().log(text));
}

fn call(done: Py<PyAny>, result: Result<Option<bool>, Failure>) {
    let called = Python::try_attach(|py| {
        let outcome = match result {
            Ok(None) => done.call1(py, (py.None(),)),
            Ok(Some(answer)) => done.call1(py, (py.None(), answer)),
            Err(failure) => done.call1(py, (PyErr::from(failure).into_value(py),)),
        };
        if let Err(error) = outcome {
            error.write_unraisable(py, Some(done.bind(py)));
        }
        drop(done);
    });
    // Without an interpreter nobody waits any more.
    let _ = called;
}

/// One job that is not yet done; dropping it counts it as done, however it ends.
struct Undone;

impl Undone {
    fn new() -> Undone {
        *UNDONE.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Undone
    }
}

impl Drop for Undone {
    fn drop(&mut self) {
        *UNDONE.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        UNDONE.1.notify_all();
    }
}

/// Waits until everything that ends in Python has ended. If a thread asks for the GIL while the
/// interpreter shuts down, Python ends the thread at once; if it has C++ on its stack, the whole
/// process ends.
#[pyfunction]
pub(crate) fn settle(py: Python<'_>) {
    py.detach(|| {
        let undone = UNDONE.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = UNDONE.1.wait_timeout_while(undone, SETTLING_MAX, |undone| *undone > 0);
    });
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}
