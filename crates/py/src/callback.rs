//! Callbacks into Python at the end of a call that returned at once.

use pyo3::prelude::*;

use crate::background::Background;
use crate::error::Failure;

/// A Python function that is called with an error or None.
pub(crate) struct Callback {
    function: Py<PyAny>,
    background: Background,
}

impl Callback {
    pub(crate) fn new(function: Py<PyAny>, background: &Background) -> Callback {
        Callback { function, background: background.clone() }
    }

    /// Calls the function from the background, with the error if there is one.
    pub(crate) fn call(self, result: Result<(), Failure>) {
        let Callback { function, background } = self;
        background.run(move || call(function, result.map(|()| None)));
    }
}

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
