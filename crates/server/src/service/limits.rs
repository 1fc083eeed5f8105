//! Limits of a server.

use thinwire_link::Bandwidth;

use crate::table::MemoryLimit;

/// Limits of a server; none of them unless given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory that rows may take, and where the others are.
    pub memory: Option<MemoryLimit>,
    /// Rate of the requests of each client, and of the answers to it, together. Whoever asks for more is read
    /// from more slowly.
    pub client_rate: Option<Bandwidth>,
}
