//! Callbacks into Python at the end of a call that returned at once.

use pyo3::prelude::*;

use crate::error::Failure;

/// Calls `done(error)`, or `done(error, answer)` where there is an answer to give.
pub(crate) fn call(done: Py<PyAny>, result: Result<Option<bool>, Failure>) {
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
