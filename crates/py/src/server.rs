//! A server of a job's parameter server, for a Python process that hosts one.

use std::mem::ManuallyDrop;
use std::path::PathBuf;

use pyo3::prelude::*;
use thinwire_checkpoint::Location;
use thinwire_job::elastic::JobAddress;
use thinwire_server::ServerOptions;

use crate::arguments::settings;
use crate::background;
use crate::error::Failure;
use crate::wait;

/// A server in this process; it lives as long as this object.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Server {
    inner: Option<thinwire_server::Server>,
    process: u32,
}

impl Server {
    fn inner(&self) -> &thinwire_server::Server {
        self.inner.as_ref().expect("it is taken out by drop alone")
    }
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (coordinator, token = "", listen = "127.0.0.1:0", timeout_s = 60.0,
        snapshots = None, restore = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        coordinator: &str,
        token: &str,
        listen: &str,
        timeout_s: f64,
        snapshots: Option<PathBuf>,
        restore: Option<PathBuf>,
    ) -> PyResult<Server> {
        let settings = settings("auto", None, None, timeout_s, None, None)?;
        background::log_warnings();
        let job_address = JobAddress::server(coordinator, token).map_err(Failure::from)?;
        let listen = listen.to_owned();
        wait::for_work(py, move || {
            let (snapshots, restore) = (snapshots.map(Location::from), restore.map(Location::from));
            let options = ServerOptions { snapshots, restore, ..ServerOptions::default() };
            let inner =
                thinwire_server::Server::with_options(&job_address, &listen, &settings, options)?;
            Ok(Server { inner: Some(inner), process: std::process::id() })
        })
    }

    /// Returns the address at which other processes reach it: "host:port".
    #[getter]
    fn address(&self) -> &str {
        self.inner().address()
    }

    /// Returns figures for people, as JSON, at most a second old.
    fn figures(&self) -> String {
        serde_json::to_string(&self.inner().stats()).expect("numbers are JSON")
    }

    /// Returns why the coordinator refuses this server, if it does.
    fn refusal(&self) -> Option<String> {
        self.inner().refusal()
    }

    /// Leaves the job: returns when the others continue without this server.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| self.inner().leave());
    }
}

impl Drop for Server {
    /// Does nothing in a fork, which has a copy of the object and none of the server's threads: ending
    /// it would end the parent's.
    fn drop(&mut self) {
        if std::process::id() != self.process {
            let _parents = ManuallyDrop::new(self.inner.take());
        }
    }
}
