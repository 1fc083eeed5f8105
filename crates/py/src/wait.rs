//! Waiting without the GIL, interrupted by Ctrl-C.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use thinwire_collective::Stop;

use crate::error::Failure;

/// Interval at which signals are checked.
const PERIOD: Duration = Duration::from_millis(50);

/// The time between calls of a watch.
const WATCH: Duration = Duration::from_secs(1);

/// Waits for an answer. A signal ends the group, so that the core no longer touches the caller's
/// memory, and is then raised.
pub(crate) fn for_answer<T: Send>(
    py: Python<'_>,
    answer: Receiver<Result<T, Failure>>,
    stop: &Stop,
) -> PyResult<T> {
    let answer = Mutex::new(answer);
    let look = || {
        py.check_signals().inspect_err(|_| {
            stop.stop("interrupted by a signal");
            // It is an error now, or has just come.
            py.detach(|| drop(answer.lock().expect("no holder panics").recv()));
        })
    };
    looking(py, &answer, look)
}

/// Runs `work` on a thread of its own and waits for it. After a signal the thread continues alone, so
/// it must not touch the caller's memory.
pub(crate) fn for_work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    for_work_beside(py, || Ok(()), work)
}

/// Waits as [`for_work`] does. `watch` is called regularly; if it raises, the wait ends as by a signal.
pub(crate) fn for_work_beside<T: Send + 'static>(
    py: Python<'_>,
    watch: impl Fn() -> PyResult<()>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (reply, answer) = channel();
    // Nobody listens any more after a signal.
    std::thread::spawn(move || reply.send(work()));
    let mut watched = Instant::now();
    let look = || {
        py.check_signals()?;
        if watched.elapsed() >= WATCH {
            watch()?;
            watched = Instant::now();
        }
        Ok(())
    };
    looking(py, &Mutex::new(answer), look)
}

/// Waits for an answer, and calls `look` after each period without one.
fn looking<T: Send>(
    py: Python<'_>,
    answer: &Mutex<Receiver<Result<T, Failure>>>,
    mut look: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    loop {
        match py.detach(|| answer.lock().expect("no holder panics").recv_timeout(PERIOD)) {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Disconnected) => return Err(gone().into()),
            Err(RecvTimeoutError::Timeout) => look()?,
        }
    }
}

/// Returns the failure of a call whose thread has ended without an answer.
pub(crate) fn gone() -> Failure {
    Failure::Peer("the communication thread has stopped".to_owned())
}
