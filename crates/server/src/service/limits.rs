//! Limits of a server.

use thinwire_link::Bandwidth;

use crate::table::MemoryLimit;

/// Limits of a server; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory limit of rows, and the folder for spilled rows.
    pub memory: Option<MemoryLimit>,
    /// Limit on the rate of each client's requests and their answers together. The server reads more slowly
    /// from a client that exceeds it.
    pub client_rate: Option<Bandwidth>,
}
