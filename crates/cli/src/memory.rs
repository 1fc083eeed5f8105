//! Memory of this machine and this process: how much is free, by how much it grows, and settings of the allocator for what is freed.
//!
//! The tensors of one step are those of the step before. Where the allocator hands them to the system
//! in between, every page of them is mapped and cleared anew: a tenth of a step on one core, and a
//! third of one that recomputes. The peak is the same.
#![allow(unsafe_code)]

use std::fs;

use anyhow::{Result, anyhow};
use thinwire_report::figures;

use crate::failure::hinted;

/// Memory that making a graph takes: places of each vertex's neighbours, twice while edges are sorted, its
/// label and its use.
const BYTES_PER_VERTEX: f64 = 24.0;
/// An edge as a pair, and in the list of its vertex.
const BYTES_PER_EDGE: f64 = 12.0;

/// Refuses work that needs more memory than is free. Where the system does not say how much is, the work is
/// tried.
///
/// # Errors
/// If `bytes` are more than are free; `what` names the work in the message.
pub fn ensure(bytes: u64, what: &str, hint: &str) -> Result<()> {
    let Some(free) = free().filter(|free| bytes > *free) else { return Ok(()) };
    let [bytes, free] = [bytes, free].map(|bytes| figures::bytes(bytes as f64));
    let error = anyhow!("{what} needs about {bytes} of memory, {free} are free");
    Err(hinted(error, hint))
}

/// Refuses a graph that does not fit in memory while it is made.
///
/// # Errors
/// If it does not.
pub fn ensure_graph(vertices: u64, edges: f64, hint: &str) -> Result<()> {
    let bytes = BYTES_PER_VERTEX * vertices as f64 + BYTES_PER_EDGE * edges;
    let what = format!("a graph of {} vertices", figures::count(vertices));
    ensure(bytes as u64, &what, hint)
}

/// Returns the memory in bytes that this process may still take, or `None` where the system does not say.
pub fn free() -> Option<u64> {
    let of_machine = in_file("/proc/meminfo", "MemAvailable:");
    [of_machine, free_in_container(), free_of_process()].into_iter().flatten().min()
}

/// Returns the memory that is left to the process's container; none without a limit.
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

/// Returns what is left of the process's limit on its address space (`ulimit -v`); none without a limit.
fn free_of_process() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(most.saturating_sub(in_file("/proc/self/status", "VmSize:")?))
}

/// Returns a field of a file in /proc, in bytes; none if there is no such field.
pub fn in_file(path: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Growth of this process from one moment on.
#[derive(Debug)]
pub struct Growth {
    before: Option<u64>,
}

impl Growth {
    /// From now on, where nothing is free that could be taken without growing; the peak so far is forgotten
    /// where the system allows it.
    pub fn from_now() -> Growth {
        give_back();
        // Without the permission the peak of what came before counts too, which was little.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Growth { before: in_file("/proc/self/status", "VmRSS:") }
    }

    /// The most bytes since then beyond what there were; none where the system does not say.
    pub fn bytes(&self) -> Option<u64> {
        Some(in_file("/proc/self/status", "VmHWM:")?.saturating_sub(self.before?))
    }
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
