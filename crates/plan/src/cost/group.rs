//! Groups: the devices along some dimensions of a mesh, and the ports that they share.
//!
//! A mesh is laid over neighbouring devices, its last dimension over the nearest ones. At every level of the
//! cluster, a group then has some members within each unit. All other groups along the same dimensions
//! communicate at the same time and share the units' ports.

use std::collections::{BTreeMap, BTreeSet};

use crate::Cluster;
use crate::cluster::{Handling, Lane};

/// Part of a group's traffic that crosses one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Level.
    pub level: usize,
    /// Number of units of the level below that the hop joins.
    pub members: f64,
    /// Devices of the group in each of the units that the hop joins.
    pub inside: f64,
    /// Latency in seconds.
    pub latency_s: f64,
    /// Bytes per second of one device while all devices send to all others.
    pub bytes_per_s: f64,
}

/// Devices along some dimensions of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Number of devices.
    pub size: usize,
    /// Levels that the group spans, innermost first.
    pub hops: Vec<Hop>,
}

impl Group {
    /// Returns the group along the dimensions `dims` of a mesh over neighbouring devices.
    pub fn along(cluster: &Cluster, mesh: &[usize], dims: &[usize]) -> Group {
        let size = dims.iter().map(|dim| mesh[*dim]).product();
        let (mut unit, mut below) = (1.0, 1.0);
        let mut hops = Vec::new();
        for (at, level) in cluster.levels.iter().enumerate() {
            let whole = unit * level.size as f64;
            let within: f64 = dims.iter().map(|dim| members(mesh, *dim, whole)).product();
            if within > below {
                let lane = match &level.links {
                    Some(links) => {
                        let sets = sets(cluster, mesh, dims, [unit as usize, level.size]);
                        sets.iter().map(|set| links.direct(set)).fold(Lane::FREE, Lane::and)
                    }
                    None => Lane { latency_s: level.latency_s, bytes_per_s: level.bytes_per_s },
                };
                hops.push(Hop {
                    level: at,
                    members: within / below,
                    inside: below,
                    latency_s: lane.latency_s,
                    bytes_per_s: lane.bytes_per_s / unit,
                });
            }
            (unit, below) = (whole, within);
        }
        Group { size, hops }
    }

    /// Returns the group without latencies. If many exchanges run side by side, only the first of them waits
    /// for a latency.
    pub fn without_latency(mut self) -> Group {
        self.hops.iter_mut().for_each(|hop| hop.latency_s = 0.0);
        self
    }

    /// Returns the group with links that take no time.
    pub fn free(self) -> Group {
        let mut group = self.without_latency();
        group.hops.iter_mut().for_each(|hop| hop.bytes_per_s = f64::INFINITY);
        group
    }

    /// Returns the group for an exchange that the device waits for: no link is then faster than the device
    /// itself moves bytes.
    pub fn handled(mut self, handling: &Handling) -> Group {
        let most = 1.0 / handling.byte_s;
        self.hops.iter_mut().for_each(|hop| hop.bytes_per_s = hop.bytes_per_s.min(most));
        self
    }

    /// Returns the hop of messages to the next stage, while all `devices` devices of the stage
    /// send: the outermost level that any of them must cross.
    pub fn next_stage(cluster: &Cluster, devices: usize, stage: usize) -> Hop {
        let mut unit = 1;
        let mut found = None;
        for (at, level) in cluster.levels.iter().enumerate() {
            if crosses(stage * devices, devices, unit) {
                let sharing = devices.min(unit) as f64;
                let first = stage * devices;
                let pairs = (first..first + devices).map(|from| [from, from + devices]);
                let pairs = pairs.map(|pair| pair.map(|device| device / unit));
                let pairs = pairs.filter(|[from, to]| from != to);
                let mut lane = Lane { latency_s: level.latency_s, bytes_per_s: level.bytes_per_s };
                if let Some(links) = &level.links {
                    let one =
                        |[from, to]: [usize; 2]| links.between(from % level.size, to % level.size);
                    lane = pairs.map(one).fold(Lane::FREE, Lane::and);
                }
                let (latency_s, bytes_per_s) = (lane.latency_s, lane.bytes_per_s / sharing);
                found = Some(Hop { level: at, members: 2.0, inside: 1.0, latency_s, bytes_per_s });
            }
            unit *= level.size;
        }
        found.expect("two devices differ on the innermost level")
    }
}

/// Returns whether any of the `devices` devices from `first` on lies in another unit than the device
/// `devices` places further.
fn crosses(first: usize, devices: usize, unit: usize) -> bool {
    let spans = first % unit + devices > unit;
    spans || (first + devices - 1) % unit + devices >= unit
}

/// Returns the devices along a dimension within a unit of `unit` neighbouring devices.
fn members(mesh: &[usize], dim: usize, unit: f64) -> f64 {
    let stride: usize = mesh[dim + 1..].iter().product();
    (unit / stride as f64).clamp(1.0, mesh[dim] as f64)
}

/// Returns the sets of a level's members that exchange along some dimensions of a mesh, for all stages that
/// the cluster has room for.
fn sets(
    cluster: &Cluster,
    mesh: &[usize],
    dims: &[usize],
    [unit, size]: [usize; 2],
) -> BTreeSet<Vec<usize>> {
    let devices: usize = mesh.iter().product();
    let mut groups: BTreeMap<(usize, Vec<usize>), Vec<usize>> = BTreeMap::new();
    for device in 0..cluster.size() / devices * devices {
        let (mut rest, mut others) = (device % devices, vec![device / devices]);
        for (dim, length) in mesh.iter().enumerate().rev() {
            if !dims.contains(&dim) {
                others.push(rest % length);
            }
            rest /= length;
        }
        let members = groups.entry((device / unit / size, others)).or_default();
        let member = device / unit % size;
        if members.last() != Some(&member) {
            members.push(member);
        }
    }
    groups.into_values().filter(|members| members.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS_OF_NODES: &str = r#"
        [[device]]
        name = "a"
        tflops = 1
        memory_gib = 1
        memory_gbyte_per_s = 1000

        [[level]]
        name = "node"
        size = 8
        latency_us = 1
        gbit = 2400

        [[level]]
        name = "pod"
        size = 16
        latency_us = 1
        gbit = 800
    "#;

    fn cluster() -> Cluster {
        Cluster::parse(PODS_OF_NODES).unwrap()
    }

    #[test]
    fn the_last_dimension_is_nearest() {
        let group = |mesh: &[usize], dims: &[usize]| {
            let hops = Group::along(&cluster(), mesh, dims).hops;
            hops.iter().map(|hop| (hop.members, hop.inside, hop.bytes_per_s)).collect::<Vec<_>>()
        };
        assert_eq!(group(&[16, 8], &[1]), [(8.0, 1.0, 300e9)]);
        assert_eq!(group(&[16, 8], &[0]), [(16.0, 1.0, 12.5e9)]);
        assert_eq!(group(&[32, 4], &[0]), [(2.0, 1.0, 300e9), (16.0, 2.0, 12.5e9)]);
        assert_eq!(group(&[8, 16], &[1]), [(8.0, 1.0, 300e9), (2.0, 8.0, 12.5e9)]);
        assert_eq!(group(&[16, 8], &[0, 1]), [(8.0, 1.0, 300e9), (16.0, 8.0, 12.5e9)]);
        assert_eq!(group(&[128, 1], &[1]), []);
    }

    #[test]
    fn no_link_is_faster_than_who_moves_the_bytes() {
        let handled = |byte_s| {
            let handling = Handling { byte_s, ..Handling::default() };
            let group = Group::along(&cluster(), &[16, 8], &[0, 1]).handled(&handling);
            group.hops.iter().map(|hop| hop.bytes_per_s).collect::<Vec<_>>()
        };
        assert_eq!(handled(0.0), [300e9, 12.5e9]);
        assert_eq!(handled(1e-10), [10e9, 10e9]);
    }

    #[test]
    fn messages_take_the_outermost_level_that_they_cross() {
        let next = |devices, stage| {
            let hop = Group::next_stage(&cluster(), devices, stage);
            (hop.level, hop.bytes_per_s)
        };
        assert_eq!(next(4, 0), (0, 300e9));
        assert_eq!(next(4, 1), (1, 25e9));
        assert_eq!(next(8, 0), (1, 12.5e9));
        assert_eq!(next(16, 1), (1, 12.5e9));
        assert_eq!(next(1, 6), (0, 300e9));
        assert_eq!(next(1, 7), (1, 100e9));
    }

    #[test]
    fn crossing_is_that_of_any_device() {
        for (devices, unit) in [(1, 8), (2, 8), (3, 8), (4, 8), (6, 8), (8, 8), (12, 8), (5, 1)] {
            for stage in 0..6 {
                let first = stage * devices;
                let any = (first..first + devices).any(|at| at / unit != (at + devices) / unit);
                assert_eq!(crosses(first, devices, unit), any, "{devices} of {unit} from {first}");
            }
        }
    }
}
