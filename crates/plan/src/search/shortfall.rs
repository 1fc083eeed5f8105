//! Shortfall: hints for models that do not fit the memory of the devices.

use crate::cluster::Device;
use crate::error::size;
use crate::{Cluster, Error, Kind, TooLarge};

/// Largest number of doublings of the outermost level.
const DOUBLINGS: u32 = 8;
/// Largest number of devices with which a search still takes seconds.
const DEVICES_MAX: usize = 1 << 14;
const MIB: f64 = (1_u64 << 20) as f64;
const GIB: f64 = (1_u64 << 30) as f64;

/// Searches a larger cluster for a plan that fits.
type Fits<'a> = &'a dyn Fn(&Cluster) -> Result<(), Error>;

/// Returns the error that `what` needs more memory than a device has. If kinds differ, the need depends on
/// the assignment of work, so the error names only the memory of the smallest kind.
pub(super) fn too_large(what: &str, all: TooLarge, cluster: &Cluster, reserve: f64) -> Error {
    let usable = |device: &Device| (1.0 - reserve) * device.memory_bytes;
    let smallest = cluster.devices.iter().min_by(|a, b| usable(a).total_cmp(&usable(b)));
    match smallest.filter(|_| !cluster.kinds.is_empty()) {
        Some(device) => {
            let (name, has) = (&device.name, size(usable(device)));
            let found = format!("{what} does not fit devices of every kind");
            Error::memory(format!("{found}, expected at most {has} on '{name}'"), all)
        }
        None => {
            let (needed, has) = (size(all.needed_bytes), size(usable(&cluster.pace())));
            Error::memory(format!("{what} needs {needed} per device, expected at most {has}"), all)
        }
    }
}

/// Returns a hint: a sufficient number of such devices, or a sufficient memory.
///
/// The hint does not name recomputation, ZeRO or small micro-batches, because the search has tried them.
fn hint(cluster: &Cluster, reserve: f64, all: TooLarge, fits: Fits<'_>) -> String {
    let tried = "recomputation, ZeRO 3 and the smallest micro-batches are not enough";
    let each = match cluster.kinds.is_empty() {
        true => {
            format!("devices with {} would do", at_least(all.needed_bytes / (1.0 - reserve)))
        }
        false => "more memory on the smaller kinds may do".to_owned(),
    };
    match enough(cluster, reserve, all.least_bytes, fits) {
        Some(devices) => format!("{tried}; {devices} such devices or {each}"),
        None => format!("{tried}; {each}, or a smaller model or sequence"),
    }
}

/// Returns whole units of memory that hold `bytes`.
fn at_least(bytes: f64) -> String {
    match bytes >= GIB {
        true => format!("{:.0} GiB", (bytes / GIB).ceil()),
        false => format!("{:.0} MiB", (bytes / MIB).ceil()),
    }
}

/// Returns a sufficient number of devices, found by doubling the outermost level. Twice as many
/// devices need at least half of `least_bytes` each.
fn enough(cluster: &Cluster, reserve: f64, least_bytes: f64, fits: Fits<'_>) -> Option<usize> {
    let usable = |part: f64| {
        let least =
            |device: &Device| device.fixed_bytes + part * (least_bytes - device.fixed_bytes);
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
        if !usable(0.5_f64.powi(doubling as i32)) {
            continue;
        }
        match fits(&larger) {
            Ok(()) => return Some(larger.size()),
            Err(error) if error.kind == Kind::Memory => {}
            Err(_) => return None,
        }
    }
    None
}

/// Adds a hint to the error, if it is about memory.
pub(super) fn explained(cluster: &Cluster, reserve: f64, error: Error, fits: Fits<'_>) -> Error {
    match error.too_large {
        Some(all) => error.with_hint(hint(cluster, reserve, all, fits)),
        None => error,
    }
}
