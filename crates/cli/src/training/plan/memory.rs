//! Memory of this process, as the system counts it.

use std::fs;

use crate::memory;

/// The memory of the process, seen from one moment on.
#[derive(Debug)]
pub struct Growth {
    before: Option<u64>,
}

impl Growth {
    /// From now on, where nothing is free that could be taken without growing; the peak so far is forgotten where the system allows it.
    pub fn from_now() -> Growth {
        memory::give_back();
        // Without the permission the peak of what came before counts too, which was little.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Growth { before: bytes("VmRSS:") }
    }

    /// The most bytes since then beyond what there were; none where the system does not say.
    pub fn bytes(&self) -> Option<u64> {
        Some(bytes("VmHWM:")?.saturating_sub(self.before?))
    }
}

/// Returns a field of this process's status in bytes.
fn bytes(field: &str) -> Option<u64> {
    memory::in_file("/proc/self/status", field)
}
