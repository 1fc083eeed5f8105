//! What Python's forks need to let go of sockets.

use pyo3::prelude::*;
use thinwire_link::forks;

/// Descriptor and inode of every socket that this process, or the one that it was forked from, has opened.
#[pyfunction]
pub(crate) fn sockets() -> Vec<(i32, u64)> {
    forks::sockets().collect()
}
