//! Waiting without the GIL, with an ear for Ctrl-C.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use thinwire_collective::Stop;

use crate::error::Failure;

/// Interval at which signals are looked at.
const PERIOD: Duration = Duration::from_millis(50);

/// The time between calls of a watch.
const WATCH: Duration = Duration::from_secs(1);

/// Waits for an answer. A signal ends the group, so that nobody touches the caller's memory any
/// more, and is then raised.
pub(crate) fn for_answer<T: Send>(
    py: Python<'_>,
    answer: Receiver<Result<T, Failure>>,
    stop: &Stop,
) -> PyResult<T> {
    let answer = Mutex::new(answer);
    loop {
        match next(py, &answer) {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Disconnected) => return Err(gone().into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(signal) = py.check_signals() {
            stop.stop("interrupted by a signal");
            // It is an error now, or has just come.
            py.detach(|| drop(answer.lock().expect("no holder panics").recv()));
            return Err(signal);
        }
    }
}

/// Runs `work` on a thread of its own and waits for it. After a signal it is left to itself, so it
/// may not touch the caller's memory.
pub(crate) fn for_work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    for_work_beside(py, || Ok(()), work)
}

/// Waits as [`for_work`] does, and ends as by a signal when `watch`, which is called regularly,
/// raises.
pub(crate) fn for_work_beside<T: Send + 'static>(
    py: Python<'_>,
    watch: impl Fn() -> PyResult<()>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (reply, answer) = channel();
    // Nobody listens any more after a signal.
    std::thread::spawn(move || reply.send(work()));
    let answer = Mutex::new(answer);
    let mut watched = Instant::now();
    loop {
        match next(py, &answer) {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Disconnected) => return Err(gone().into()),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
        if watched.elapsed() >= WATCH {
            watch()?;
            watched = Instant::now();
        }
    }
}

/// One period of waiting.
fn next<T: Send>(py: Python<'_>, answer: &Mutex<Receiver<T>>) -> Result<T, RecvTimeoutError> {
    py.detach(|| answer.lock().expect("no holder panics").recv_timeout(PERIOD))
}

/// The failure of a call whose thread has ended without an answer.
pub(crate) fn gone() -> Failure {
    Failure::Peer("the communication thread has stopped".to_owned())
}
