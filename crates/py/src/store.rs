//! The rendezvous store, for whoever hosts it beside rank 0.

use pyo3::prelude::*;
use thinwire_link::store::tcp::Server;

use crate::error::Failure;

/// A rendezvous server in this process; it lives as long as this object.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Store {
    address: String,
    _server: Server,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (host, port = 0, token = ""))]
    fn new(host: &str, port: u16, token: &str) -> PyResult<Store> {
        let (server, address) = thinwire_job::open(host, port, token).map_err(Failure::from)?;
        Ok(Store { address, _server: server })
    }

    /// Where ranks reach it: "host:port".
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}
