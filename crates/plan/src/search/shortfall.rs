//! What would make a model fit that does not.

use super::Planner;
use crate::Error;
use crate::cluster::{Cluster, Device};
use crate::error::{Kind, TooLarge, size};

/// How often the outermost level is doubled at most.
const DOUBLINGS: u32 = 8;
/// Devices with which a search still takes seconds.
const DEVICES_MAX: usize = 1 << 14;
const MIB: f64 = (1_u64 << 20) as f64;
const GIB: f64 = (1_u64 << 30) as f64;

/// `what` needs more bytes of a device than it has. Where kinds differ what a plan needs depends on
/// who does what of it, so only what the smallest kind has is said.
pub(super) fn too_large(what: &str, all: TooLarge, cluster: &Cluster, reserve: f64) -> Error {
    let room = |device: &Device| (1.0 - reserve) * device.memory_bytes;
    let smallest = cluster.devices.iter().min_by(|a, b| room(a).total_cmp(&room(b)));
    match smallest.filter(|_| !cluster.kinds.is_empty()) {
        Some(device) => {
            let (name, has) = (&device.name, size(room(device)));
            let found = format!("{what} does not fit devices of every kind");
            Error::memory(format!("{found}, expected at most {has} on '{name}'"), all)
        }
        None => {
            let (needed, has) = (size(all.needed_bytes), size(room(&cluster.pace())));
            Error::memory(format!("{what} needs {needed} per device, expected at most {has}"), all)
        }
    }
}

/// A hint: how many devices of the same kind would do, or how much memory.
///
/// Recomputation, ZeRO and small micro-batches are no hints, because the search has tried them.
fn hint(planner: &Planner, cluster: &Cluster, all: TooLarge) -> String {
    let settings = planner.settings();
    let tried = "recomputation, ZeRO 3 and the smallest micro-batches are not enough";
    let each = match cluster.kinds.is_empty() {
        true => {
            format!(
                "devices with {} would do",
                at_least(all.needed_bytes / (1.0 - settings.reserve))
            )
        }
        false => "more memory on the smaller kinds may do".to_owned(),
    };
    match enough(planner, cluster, all.least_bytes) {
        Some(devices) => format!("{tried}; {devices} such devices or {each}"),
        None => format!("{tried}; {each}, or a smaller model or sequence"),
    }
}

/// Whole units of memory that hold so many bytes.
fn at_least(bytes: f64) -> String {
    match bytes >= GIB {
        true => format!("{:.0} GiB", (bytes / GIB).ceil()),
        false => format!("{:.0} MiB", (bytes / MIB).ceil()),
    }
}

/// The least number of devices that is enough, by doubling the outermost level; where so many bytes
/// are needed now, twice as many devices need half of them at least.
fn enough(planner: &Planner, cluster: &Cluster, least_bytes: f64) -> Option<usize> {
    let room = |part: f64| {
        let least =
            |device: &Device| device.fixed_bytes + part * (least_bytes - device.fixed_bytes);
        let reserve = planner.settings().reserve;
        let fits = |device: &Device| least(device) <= (1.0 - reserve) * device.memory_bytes;
        cluster.devices.iter().any(fits)
    };
    let mut larger = cluster.clone();
    for doubling in 1..=DOUBLINGS {
        let last = larger.levels.last_mut()?;
        *last = last.resized(2 * last.size);
        larger.kinds = larger.kinds.repeat(2);
        if larger.size() > DEVICES_MAX {
            return None;
        }
        if !room(0.5_f64.powi(doubling as i32)) {
            continue;
        }
        match planner.fresh().plan_once(&larger) {
            Ok(_) => return Some(larger.size()),
            Err(error) if error.kind == Kind::Memory => {}
            Err(_) => return None,
        }
    }
    None
}

/// An error with the hint, if it is one of memory.
pub(super) fn explained(planner: &Planner, cluster: &Cluster, error: Error) -> Error {
    match error.too_large {
        Some(all) => error.with_hint(hint(planner, cluster, all)),
        None => error,
    }
}
