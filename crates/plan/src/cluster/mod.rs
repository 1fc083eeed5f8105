//! The machines: what devices can do, and how they are connected.
//!
//! Devices are numbered from 0. A [`Level`] joins `size` members, each of them what the level
//! before made: devices into a node, nodes into a pod. Every member has one port to the others of
//! its level, which all devices inside of it share. So device 13 of nodes of eight is the sixth of
//! the second node, and eight devices of a node that send to other nodes at once get an eighth of
//! the node's port each.
//!
//! Law: the product of all levels' sizes is the number of devices.

mod device;
mod file;

pub use device::{Device, Efficiency, Handling};

use crate::Error;

/// Devices and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The kinds of devices.
    pub devices: Vec<Device>,
    /// How they are joined, innermost first.
    pub levels: Vec<Level>,
    /// For every unit of the innermost level, the kind of its devices; empty if there is one kind.
    pub kinds: Vec<usize>,
}

/// How equal parts of the cluster are joined into a larger one.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// What the user calls it: `node`, `pod`.
    pub name: String,
    /// How many members it joins.
    pub size: usize,
    /// Seconds from a bit's departure to its arrival between two members.
    pub latency_s: f64,
    /// Bytes per second that one member can send to the others, and receive at the same time.
    pub bytes_per_s: f64,
}

impl Cluster {
    /// Reads a cluster from the text of a TOML file.
    ///
    /// # Errors
    /// If it is no TOML, a field is missing, unknown or out of range, or the parts contradict each
    /// other; the message names the field and both values.
    pub fn parse(text: &str) -> Result<Cluster, Error> {
        file::parse(text)
    }

    /// How many devices there are.
    pub fn size(&self) -> usize {
        self.levels.iter().map(|level| level.size).product()
    }

    /// All devices as if they were equal and could do together what they can: their mean rates, the
    /// curve of the fastest and the largest memory of any. No plan for the cluster is faster than
    /// one for as many such devices, but for curves that cross.
    pub fn mean(&self) -> Device {
        let of_unit = |unit: usize| &self.devices[self.kinds.get(unit).copied().unwrap_or(0)];
        let units = self.kinds.len().max(1);
        let all = || (0..units).map(of_unit);
        let mean = |rate: &dyn Fn(&Device) -> f64| all().map(rate).sum::<f64>() / units as f64;
        let most = |rate: &dyn Fn(&Device) -> f64| all().map(rate).fold(0.0, f64::max);
        let least = |cost: &dyn Fn(&Device) -> f64| all().map(cost).fold(f64::MAX, f64::min);
        let fast = all().max_by(|one, other| one.flops_per_s.total_cmp(&other.flops_per_s));
        Device {
            flops_per_s: mean(&|device| device.flops_per_s),
            memory_bytes: most(&|device| device.memory_bytes),
            memory_bytes_per_s: mean(&|device| {
                device.memory_bytes_per_s * device.memory_efficiency
            }),
            memory_efficiency: 1.0,
            codec_bytes_per_s: most(&|device| device.codec_bytes_per_s),
            slack: least(&|device| device.slack),
            overhead_s: least(&|device| device.overhead_s),
            handling: Handling {
                byte_s: least(&|device| device.handling.byte_s),
                message_s: least(&|device| device.handling.message_s),
            },
            ..fast.expect("a cluster has a device").clone()
        }
    }

    /// The kind that sets the pace where all devices do the same: the one with the lowest rate,
    /// with the smallest memory that any has.
    pub fn pace(&self) -> Device {
        let kinds = || self.devices.iter();
        let slow = kinds().min_by(|one, other| one.flops_per_s.total_cmp(&other.flops_per_s));
        let slow = slow.expect("a cluster has a device").clone();
        let memory = kinds().map(|kind| kind.memory_bytes).fold(f64::MAX, f64::min);
        Device { memory_bytes: memory, ..slow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &str = r#"
        [[device]]
        name = "a100"
        tflops = 312
        memory_gib = 80
        memory_gbyte_per_s = 2039

        [[level]]
        name = "node"
        size = 8
        latency_us = 3
        gbit = 2400

        [[level]]
        name = "pod"
        size = 2
        latency_us = 10
        gbit = 800
    "#;

    fn refusal(from: &str, to: &str) -> String {
        assert!(TWO_NODES.contains(from), "{from}");
        Cluster::parse(&TWO_NODES.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_file_becomes_a_cluster() {
        let cluster = Cluster::parse(TWO_NODES).unwrap();
        assert_eq!(cluster.size(), 16);
        assert_eq!(cluster.levels[1].bytes_per_s, 1e11);
        assert_eq!(cluster.pace().flops_per_s, 312e12);
        assert_eq!(cluster.pace().memory_bytes, 80.0 * f64::from(1 << 30));
    }

    #[test]
    fn refusals_name_the_field_and_both_values() {
        for (from, to, expected) in [
            ("size = 8", "size = 0", "level 'node': size is 0, expected at least 1"),
            ("gbit = 800", "gbit = -1", "level 'pod': gbit is -1, expected a number above 0"),
            (
                "latency_us = 3",
                "latency_us = -3",
                "level 'node': latency_us is -3, expected a number from 0 on",
            ),
            ("tflops = 312", "tflops = 0", "device 'a100': tflops is 0, expected a number above 0"),
            (
                "memory_gib = 80",
                "memory_gib = nan",
                "device 'a100': memory_gib is NaN, expected a number above 0",
            ),
            (
                "name = \"pod\"",
                "name = \"node\"",
                "level 'node' stands twice, as level 1 and level 2",
            ),
            (
                "memory_gib = 80",
                "memory_gib = 80\nefficiency = [[1, 0.5], [1, 0.6]]",
                "device 'a100': efficiency at 1 gflop follows that at 1 gflop, expected more gflop in every pair",
            ),
            (
                "memory_gib = 80",
                "memory_gib = 80\nefficiency = [[1, 1.5]]",
                "device 'a100': efficiency is 1.5 at 1 gflop, expected above 0 and at most 1",
            ),
        ] {
            assert_eq!(refusal(from, to), expected);
        }
    }

    #[test]
    fn what_is_no_cluster_is_refused_in_one_line() {
        let unknown = refusal("tflops = 312", "teraflops = 312");
        assert!(unknown.contains("teraflops") && unknown.contains("line"), "{unknown}");
        assert!(!unknown.contains('\n'), "{unknown}");
        assert!(Cluster::parse("").unwrap_err().to_string().contains("device"));
        let level =
            |at: usize| format!("[[level]]\nname = \"{at}\"\nsize = 1\nlatency_us = 1\ngbit = 1\n");
        let many = TWO_NODES.to_owned() + &(0..31).map(level).collect::<String>();
        let error = Cluster::parse(&many).unwrap_err().to_string();
        assert_eq!(error, "33 levels, expected at most 32");
    }

    #[test]
    fn nodes_may_differ_in_their_devices() {
        let mixed = TWO_NODES.to_owned()
            + "[[device]]\nname = \"v100\"\ntflops = 125\nmemory_gib = 16\nmemory_gbyte_per_s = 900\n";
        let error = Cluster::parse(&mixed).unwrap_err().to_string();
        assert_eq!(error, "2 kinds of devices, but no line 'kinds' says which node has which");
        let kinds = |list: &str| Cluster::parse(&format!("kinds = {list}\n{mixed}"));
        let cluster = kinds("[\"a100\", \"v100\"]").unwrap();
        assert_eq!(cluster.kinds, [0, 1]);
        assert_eq!(cluster.pace().name, "v100");
        let error = kinds("[\"a100\"]").unwrap_err().to_string();
        assert_eq!(error, "kinds names 1 unit of level 'node', expected 2");
        let error = kinds("[\"a100\", \"b\"]").unwrap_err().to_string();
        assert_eq!(error, "kinds names device 'b', expected one of a100, v100");
    }
}
