//! The rendezvous store, for a Python program that hosts it in addition to rank 0.

use std::mem::ManuallyDrop;

use pyo3::prelude::*;
use thinwire_job::process;
use thinwire_link::store::tcp::Server;

use crate::background;
use crate::error::Failure;

/// A rendezvous server in this process; it lives as long as this object.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Store {
    address: String,
    server: Option<Server>,
    process: u32,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (host, port = 0, token = ""))]
    fn new(host: &str, port: u16, token: &str) -> PyResult<Store> {
        background::log_warnings();
        let shared = thinwire_job::port(None, &process).map_err(Failure::from)?;
        let opened = match shared.filter(|_| port == 0) {
            Some(shared) => thinwire_job::open_behind(host, shared, token),
            None => thinwire_job::open(host, port, token),
        };
        let (server, address) = opened.map_err(Failure::from)?;
        Ok(Store { address, server: Some(server), process: std::process::id() })
    }

    /// Returns the address at which ranks reach it: "host:port".
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Store {
    /// Does nothing in a fork, which has a copy of the object and not the server's thread: ending it
    /// would end the parent's.
    fn drop(&mut self) {
        if std::process::id() != self.process {
            let _parents = ManuallyDrop::new(self.server.take());
        }
    }
}
