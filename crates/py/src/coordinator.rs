//! The coordinator of an elastic job, for a Python program that hosts it in addition to the job's
//! processes.

use std::mem::ManuallyDrop;
use std::path::PathBuf;

use pyo3::prelude::*;
use thinwire_job::elastic::{self, CoordinatorMode, Job, JobAddress, Options, Servers};
use thinwire_server::Configuration;
use thinwire_wire::WORLD_SIZE_MAX;

use crate::arguments;
use crate::background::{self, Background};
use crate::error::Failure;

/// A coordinator in this process; it lives as long as this object.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Coordinator {
    inner: Option<elastic::Coordinator>,
    token: String,
    process: u32,
}

impl Coordinator {
    fn inner(&self) -> &elastic::Coordinator {
        self.inner.as_ref().expect("it is taken out by drop alone")
    }
}

#[pymethods]
impl Coordinator {
    #[new]
    #[pyo3(signature = (address, token = "", min_ranks = 1, max_ranks = 4096, state = None,
        servers = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        address: &str,
        token: &str,
        min_ranks: i128,
        max_ranks: i128,
        state: Option<PathBuf>,
        servers: bool,
    ) -> PyResult<Coordinator> {
        let (min, max) = (
            arguments::number("min_ranks", min_ranks)?,
            arguments::number("max_ranks", max_ranks)?,
        );
        background::log_warnings();
        let mode = match state {
            Some(_) => CoordinatorMode::Saved,
            None => CoordinatorMode::Unsaved,
        };
        let usual = Options::new(mode, min, max);
        let silence = thinwire_job::silence(usual.silence, &thinwire_job::process);
        let options = Options { silence: silence.map_err(Failure::from)?, ..usual };
        let job = job(options, servers)?;
        // The coordinator must not wait for the GIL.
        let thread = Background::start();
        let tell = move |event: &elastic::Event| thread.log(&*event.text);
        let bind = || elastic::Coordinator::bind(address, token, job, state.as_deref(), tell);
        let inner = Some(py.detach(bind).map_err(Failure::from)?);
        Ok(Coordinator { inner, token: token.to_owned(), process: std::process::id() })
    }

    /// Returns the address at which processes reach it: "host:port".
    #[getter]
    fn address(&self) -> String {
        self.inner().address()
    }

    /// Returns the environment variables of a new process of the job.
    fn seat(&self) -> PyResult<Vec<(&'static str, String)>> {
        let job_address =
            JobAddress::new(self.inner().address(), self.token.clone()).map_err(Failure::from)?;
        Ok(job_address.variables().into())
    }

    /// Sets the desired number of ranks.
    fn resize(&self, py: Python<'_>, ranks: i128) -> PyResult<()> {
        let ranks = arguments::number("ranks", ranks)?;
        Ok(py.detach(|| self.inner().resize(ranks)).map_err(Failure::from)?)
    }

    /// Lets all processes leave after a step that all agree on.
    fn stop(&self) {
        self.inner().stop();
    }
}

/// Returns the job of a coordinator, with servers or without.
fn job(workers: Options, servers: bool) -> Result<Job, Failure> {
    if !servers {
        return Ok(workers.into());
    }
    if workers.mode != CoordinatorMode::Saved {
        return Err(Failure::invalid(
            "a coordinator of servers needs a state file, in which it saves which server has which rows \
             (hint: state=\"FILE\")",
        ));
    }
    let usual = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
    let options = Options { silence: workers.silence, ..usual };
    Ok(Job { workers, servers: Some(Servers::new(options, Configuration::new)) })
}

impl Drop for Coordinator {
    /// Does nothing in a fork, which has a copy of the object and not the server's thread: ending it
    /// would end the parent's.
    fn drop(&mut self) {
        if std::process::id() != self.process {
            let _parents = ManuallyDrop::new(self.inner.take());
        }
    }
}
