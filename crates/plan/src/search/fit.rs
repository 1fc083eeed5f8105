//! What would make a model fit that does not.

use super::Planner;
use crate::Error;
use crate::cluster::Cluster;
use crate::error::Kind;

/// How often the outermost level is doubled at most.
const DOUBLINGS: u32 = 8;
/// Devices with which a search still takes seconds.
const DEVICES_MAX: usize = 1 << 14;
const GIB: f64 = (1_u64 << 30) as f64;

/// A hint: how many devices of the same kind would do, or how much memory.
///
/// Recomputation, ZeRO and small micro-batches are no hints, because the search has tried them.
pub(super) fn hint(planner: &Planner, cluster: &Cluster, least_bytes: f64) -> String {
    let settings = planner.settings();
    let memory = (least_bytes / (1.0 - settings.reserve) / GIB).ceil();
    let tried = "recomputation, ZeRO 3 and the smallest micro-batches are not enough";
    let each = format!("devices with {memory:.0} GiB would do");
    match enough(planner, cluster) {
        Some(devices) => format!("{tried}; {devices} such devices or {each}"),
        None => format!("{tried}; {each}, or a smaller model or sequence"),
    }
}

/// The least number of devices that is enough, by doubling the outermost level.
fn enough(planner: &Planner, cluster: &Cluster) -> Option<usize> {
    let mut larger = cluster.clone();
    for _ in 0..DOUBLINGS {
        let last = larger.levels.last_mut()?;
        *last = last.resized(2 * last.size);
        larger.kinds = larger.kinds.repeat(2);
        if larger.size() > DEVICES_MAX {
            return None;
        }
        match planner.again().plan_once(&larger) {
            Ok(_) => return Some(larger.size()),
            Err(error) if error.kind == Kind::Memory => {}
            Err(_) => return None,
        }
    }
    None
}

/// An error with the hint, if it is one of memory.
pub(super) fn explained(planner: &Planner, cluster: &Cluster, error: Error) -> Error {
    match error.least_bytes() {
        Some(bytes) => error.with_hint(hint(planner, cluster, bytes)),
        None => error,
    }
}
