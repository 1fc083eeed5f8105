//! Settings of the allocator for memory that is freed.
//!
//! The tensors of one step are those of the step before. Where the allocator hands them to the system
//! in between, every page of them is mapped and cleared anew: a tenth of a step on one core, and a
//! third of one that recomputes. The peak is the same.
#![allow(unsafe_code)]

use std::fs;

use anyhow::{Result, anyhow};

use crate::failure::hinted;
use crate::figures;

/// Refuses work that needs more memory than this machine has free. Where the system does not tell, it is tried.
///
/// # Errors
/// If `bytes` do not fit; `what` needs them.
pub fn ensure(bytes: u64, what: &str, hint: &str) -> Result<()> {
    let free = in_file("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    if bytes <= free {
        return Ok(());
    }
    let [bytes, free] = [bytes, free].map(|bytes| figures::bytes(bytes as f64));
    let error = anyhow!("{what} needs about {bytes} of memory, {free} are free");
    Err(hinted(error, hint))
}

/// Returns a field in bytes of a file of the system, where it has that.
pub fn in_file(path: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Lets glibc's allocator keep what is freed: one heap for all threads that only grows. Other
/// allocators decide for themselves.
pub fn keep() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (setting, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)]
    {
        // SAFETY: mallopt takes two numbers and may be called at any time.
        let taken = unsafe { libc::mallopt(setting, value) };
        debug_assert_eq!(taken, 1, "setting {setting}");
    }
}

/// Hands what is free to the system, once.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
