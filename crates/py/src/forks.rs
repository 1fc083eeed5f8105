//! List of sockets that forked Python processes close.

use pyo3::prelude::*;
use thinwire_link::forks;

/// Returns descriptor and inode of every socket that this process, or its parent before a fork, has opened.
#[pyfunction]
pub(crate) fn sockets() -> Vec<(i32, u64)> {
    forks::sockets().collect()
}
