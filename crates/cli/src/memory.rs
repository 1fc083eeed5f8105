//! Memory of this machine and this process: the free memory, the growth of the process, and settings of
//! the allocator for freed memory.
//!
//! The tensors of one step have the same sizes as those of the previous step. If the allocator returns their
//! memory to the system between steps, every page must be mapped and cleared again. This takes a tenth of a
//! step on one core, and a third of a step that recomputes. Keeping the memory does not change the peak.
#![allow(unsafe_code)]

use std::fs;

use anyhow::{Result, anyhow};
use thinwire_report::figures;

use crate::failure::hinted;

/// Memory per vertex while a graph is made: the positions of its neighbours, twice during the sorting of
/// edges, its label and its use.
const BYTES_PER_VERTEX: f64 = 24.0;
/// Memory per edge: the edge as a pair, and its entry in the list of a vertex.
const BYTES_PER_EDGE: f64 = 12.0;

/// Refuses work that needs more memory than is free. If the system does not report the free memory, the work
/// is tried.
///
/// # Errors
/// If `bytes` is more than the free memory. `what` names the work in the message.
pub fn ensure(bytes: u64, what: &str, hint: &str) -> Result<()> {
    let Some(free) = free().filter(|free| bytes > *free) else { return Ok(()) };
    let [bytes, free] = [bytes, free].map(|bytes| figures::bytes(bytes as f64));
    let error = anyhow!("{what} needs about {bytes} of memory, but only {free} are free");
    Err(hinted(error, hint))
}

/// Refuses a graph that does not fit in memory while it is made.
///
/// # Errors
/// If it does not fit.
pub fn ensure_graph(vertices: u64, edges: f64, hint: &str) -> Result<()> {
    let bytes = BYTES_PER_VERTEX * vertices as f64 + BYTES_PER_EDGE * edges;
    let what = format!("a graph of {} vertices", figures::count(vertices));
    ensure(bytes as u64, &what, hint)
}

/// Returns the bytes of memory that this process may still use, or `None` if the system does not report them.
pub fn free() -> Option<u64> {
    let of_machine = in_file("/proc/meminfo", "MemAvailable:");
    [of_machine, free_in_container(), free_of_process()].into_iter().flatten().min()
}

/// Returns the free memory of the process's container, or `None` without a limit.
fn free_in_container() -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // The system takes pages of files back before it ends a process.
    let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let files: u64 = files.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(files)))
}

/// Returns the rest of the process's address-space limit (`ulimit -v`), or `None` without a limit.
fn free_of_process() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(most.saturating_sub(in_file("/proc/self/status", "VmSize:")?))
}

/// Returns a field of a file in /proc in bytes, or `None` if there is no such field.
pub fn in_file(path: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Growth of this process since a point in time.
#[derive(Debug)]
pub struct Growth {
    before: Option<u64>,
}

impl Growth {
    /// Starts to measure growth. Returns free memory to the system first, so that new memory counts as
    /// growth, and resets the peak if the system allows it.
    pub fn from_now() -> Growth {
        give_back();
        // Without the permission the peak of what came before counts too, which was little.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Growth { before: in_file("/proc/self/status", "VmRSS:") }
    }

    /// Returns the largest growth in bytes since the start, or `None` if the system does not report it.
    pub fn bytes(&self) -> Option<u64> {
        Some(in_file("/proc/self/status", "VmHWM:")?.saturating_sub(self.before?))
    }
}

/// Makes glibc's allocator keep freed memory: it uses one heap for all threads, which only grows. Other
/// allocators are not changed.
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

/// Returns free memory to the system, once.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
