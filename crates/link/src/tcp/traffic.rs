//! Kinds of traffic: frames that a connection carries, and their protection.

/// Frames that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All but data: heartbeats, goodbyes and poison.
    Control,
    /// Data.
    Data,
}

/// Protection of frames against damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// None: the bytes stay on this machine.
    Trusted,
    /// Payloads have a checksum.
    Checksum,
    /// Encryption, which notices damage as well.
    Sealed,
}
