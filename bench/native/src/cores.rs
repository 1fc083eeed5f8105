//! Busy time of this machine's cores, of all processes together.
//!
//! Ranks that are measured on one machine share its cores, and a network between namespaces is work
//! for them too. No step is shorter than what all cores together need for it.

use std::fs;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// The kernel's clock ticks in a second, as it tells them to users on every architecture.
const TICKS: f64 = 100.0;

/// Seconds for which the machine was busy since it started, over its cores; none where the kernel
/// does not tell.
pub fn busy() -> Option<f64> {
    let all = fs::read_to_string("/proc/stat").ok()?;
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    Some(ticks(all.lines().next()?)? / TICKS / cores as f64)
}

/// Of the line `cpu user nice system idle iowait irq softirq …` all but idle, iowait and what other
/// machines took.
fn ticks(line: &str) -> Option<f64> {
    let fields: Vec<f64> =
        line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    (fields.len() >= 7).then(|| fields[..3].iter().chain(&fields[5..7]).sum())
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_work_counts() {
        assert_eq!(super::ticks("cpu  100 10 50 7000 300 5 7 900 0 0"), Some(172.0));
        assert_eq!(super::ticks("cpu  100"), None);
    }
}
