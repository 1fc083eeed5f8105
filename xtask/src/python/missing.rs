//! The error of a machine that cannot run anything of Python.

/// Program or module that this machine lacks, so that nothing of Python can run on it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);
