//! The error of a machine that cannot run anything of Python.

use std::fmt;

/// Program or module that this machine lacks, so that nothing of Python can run on it.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}
