//! Limits of a server.

use thinwire_link::Bandwidth;

use crate::table::MemoryLimit;

/// Limits of a server; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory limit of rows, and the folder for spilled rows.
    pub memory: Option<MemoryLimit>,
    /// Memory that the server may use without a limit of rows, in bytes; `None` if it is not known. A job whose
    /// tables need more is refused.
    pub free_bytes: Option<u64>,
    /// Limit on the rate of each client's requests and their answers together. The server reads more slowly
    /// from a client that exceeds it.
    pub client_rate: Option<Bandwidth>,
}
