//! Rows by number for Python: in memory, or in the parts of several processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use thinwire_link::Token;
use thinwire_link::endpoint::Endpoint;
use thinwire_loader::{Part, Remote, RowService, SharedSource};
use thinwire_rows::Source;

use crate::error::Failure;
use crate::memory::{Memory, Rows};
use crate::wait;

/// Rows of equal width, numbered from 0.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct RowSource {
    pub(crate) source: SharedSource,
    pub(crate) rows: u64,
    remote: Option<Arc<Remote>>,
    /// Python objects that own the memory of the rows.
    _owners: Vec<Py<PyAny>>,
}

/// Place of a part: in this process, or at an address.
#[derive(FromPyObject)]
pub(crate) enum Place {
    Here(Py<RowSource>),
    There(String),
}

impl RowSource {
    /// Returns rows that the core owns.
    pub(crate) fn of_source(source: impl Source + Send + 'static, rows: u64) -> RowSource {
        RowSource { source: Arc::new(source), rows, remote: None, _owners: Vec::new() }
    }
}

#[pymethods]
impl RowSource {
    /// Returns rows at an address, `width` bytes each, which `owner` keeps alive.
    #[staticmethod]
    fn of_memory(
        address: usize,
        rows: usize,
        width: usize,
        owner: Py<PyAny>,
    ) -> PyResult<RowSource> {
        let memory = Memory::new(address, rows.saturating_mul(width))?;
        let source = Arc::new(Rows::new(memory, width));
        Ok(RowSource { source, rows: rows as u64, remote: None, _owners: vec![owner] })
    }

    /// Returns the rows of consecutive parts. Each part is rows of this process, or host:port of a
    /// `RowServer`.
    #[staticmethod]
    fn of_parts(
        py: Python<'_>,
        parts: Vec<Place>,
        token: &str,
        timeout_s: f64,
    ) -> PyResult<RowSource> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| Failure::invalid(format!("timeout_s {timeout_s}: {error}")))?;
        let (mut owners, token) = (Vec::new(), Token::new(token));
        let part = |place| match place {
            Place::There(address) => Part::At(address, None),
            Place::Here(rows) => {
                let part = Part::Here(Arc::clone(&rows.get().source), rows.get().rows);
                owners.push(rows.into_any());
                part
            }
        };
        let parts = parts.into_iter().map(part).collect();
        let connect = move || {
            Remote::connect(parts, &token, timeout).map_err(|lost| Failure::Peer(lost.to_string()))
        };
        let remote = Arc::new(wait::for_work(py, connect)?);
        let (source, rows) = (Arc::clone(&remote), remote.rows());
        Ok(RowSource { source, rows, remote: Some(remote), _owners: owners })
    }

    /// Writes rows to an address, in the order of `numbers`, given by address and number of i64.
    fn read(&self, py: Python<'_>, numbers: (usize, usize), out: usize) -> PyResult<()> {
        let numbers = Memory::rows(numbers.0, numbers.1)?;
        let numbers = numbers.numbers();
        if let Some(row) = numbers.iter().find(|row| **row >= self.rows) {
            let text = format!("row {}, expected rows of 0..{}", *row as i64, self.rows);
            return Err(Failure::invalid(text).into());
        }
        let mut out = Memory::new(out, numbers.len().saturating_mul(self.source.width()))?;
        let read = py.detach(|| self.source.read(numbers, out.bytes_mut()));
        Ok(read.map_err(|error| Failure::Peer(error.to_string()))?)
    }

    /// Returns the bytes of a row.
    #[getter]
    fn width(&self) -> usize {
        self.source.width()
    }

    /// Returns the number of rows.
    #[getter]
    fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of rows that other processes have sent.
    #[getter]
    fn fetched(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.fetched())
    }
}

/// Thread that sends rows of this process to others, until it is closed or dropped.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct RowServer {
    server: Mutex<Option<Endpoint<RowService>>>,
    address: String,
    process: u32,
    _rows: Py<RowSource>,
}

#[pymethods]
impl RowServer {
    /// Serves `rows`, of which the first has the number `first` among the rows of all parts. `address`
    /// is host:port, as others reach it; the server listens on all interfaces, or on loopback if that
    /// is the host.
    #[new]
    fn new(rows: Py<RowSource>, first: u64, address: &str, token: &str) -> PyResult<RowServer> {
        let service = RowService::new(Arc::clone(&rows.get().source), first, rows.get().rows)
            .map_err(|error| Failure::invalid(error.to_string()))?;
        let (server, address) =
            thinwire_job::serve(address, token, service).map_err(Failure::from)?;
        let server = Mutex::new(Some(server));
        Ok(RowServer { server, address, process: std::process::id(), _rows: rows })
    }

    /// Returns the address at which it answers, host:port.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Ends the thread.
    fn close(&self) {
        drop(self.server.lock().expect("no holder panics").take());
    }
}

impl Drop for RowServer {
    /// Ends the thread before the rows are dropped. A fork has no thread to end.
    fn drop(&mut self) {
        let server = self.server.lock().expect("no holder panics").take();
        if self.process != std::process::id() {
            std::mem::forget(server);
        }
    }
}
