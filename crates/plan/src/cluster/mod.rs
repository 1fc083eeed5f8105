//! The machines: devices, and the network between them.
//!
//! Devices are numbered from 0. A [`Level`] joins `size` members, each of which is a unit of the level
//! before: devices into a node, nodes into a pod. Every member has one port to the others of its level, which
//! all devices inside it share. With nodes of eight devices, device 13 is therefore the sixth of the second
//! node, and if all eight devices of a node send to other nodes at once, each gets an eighth of the node's
//! port.
//!
//! Law: the product of all levels' sizes is the number of devices.

mod device;
mod file;
mod links;
mod matrix;
mod range;
mod subset;

pub(crate) use device::{ADD, LAYOUT, UPDATE};
pub use device::{Device, Efficiency, Handling};
pub use links::{Lane, Links};
pub use subset::Subset;

use crate::Error;

/// Devices and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Kinds of devices.
    pub devices: Vec<Device>,
    /// Levels of the network, innermost first.
    pub levels: Vec<Level>,
    /// Kind of the devices in each innermost unit; empty if there is only one kind.
    pub kinds: Vec<usize>,
}

/// Level that joins equal parts of the cluster into a larger one.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Name in the cluster file, such as `node` or `pod`.
    pub name: String,
    /// Number of members.
    pub size: usize,
    /// Latency between two members in seconds.
    pub latency_s: f64,
    /// Bytes per second that one member sends to the others, and receives at the same time; if links
    /// differ, the smallest bandwidth of any link.
    pub bytes_per_s: f64,
    /// Links between members, if they differ.
    pub links: Option<Links>,
}

impl Level {
    /// Returns the level with `times` the bandwidth.
    pub fn scaled(&self, times: f64) -> Level {
        let links = self.links.clone().map(|links| links.scaled(times));
        Level { bytes_per_s: self.bytes_per_s * times, links, ..self.clone() }
    }

    /// Returns the level with only its first members, or with more members. In a larger level, all links
    /// are like the slowest link.
    pub fn resized(&self, size: usize) -> Level {
        match &self.links {
            Some(links) if size <= links.members() => self.of(&(0..size).collect::<Vec<_>>()),
            _ => Level { size, links: None, ..self.clone() },
        }
    }

    /// Returns the level with some of its members, and only the links between these.
    fn of(&self, members: &[usize]) -> Level {
        let size = members.len();
        let links = self.links.as_ref().map(|links| links.of(members));
        // A single member has no link, and a level has numbers.
        let worst = links.as_ref().filter(|_| size > 1).map(Links::worst);
        let Lane { latency_s, bytes_per_s } =
            worst.unwrap_or(Lane { latency_s: self.latency_s, bytes_per_s: self.bytes_per_s });
        Level { size, links, latency_s, bytes_per_s, ..self.clone() }
    }
}

impl Cluster {
    /// Reads a cluster from the text of a TOML file.
    ///
    /// # Errors
    /// Returns an error if the text is not TOML, a field is missing, unknown or out of range, or parts
    /// contradict each other. The message names the field and both values.
    pub fn parse(text: &str) -> Result<Cluster, Error> {
        file::parse(text)
    }

    /// Returns the number of devices.
    pub fn size(&self) -> usize {
        self.levels.iter().map(|level| level.size).product()
    }

    /// Returns a device with the mean rates of the first `devices` devices, the efficiency curve of the
    /// fastest device, and the largest memory. Unless curves cross, no plan for the real devices is
    /// faster than the best plan for the same number of such mean devices.
    pub fn mean(&self, devices: usize) -> Device {
        let inner = self.levels[0].size;
        let of_unit = |unit: usize| &self.devices[self.kinds.get(unit).copied().unwrap_or(0)];
        let all = || (0..devices.div_ceil(inner)).map(of_unit);
        let shares = || (0..devices).step_by(inner).map(|first| inner.min(devices - first));
        let mean = |rate: &dyn Fn(&Device) -> f64| {
            let rates = all().zip(shares()).map(|(device, share)| share as f64 * rate(device));
            rates.sum::<f64>() / devices as f64
        };
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
                exchange_s: least(&|device| device.handling.exchange_s),
            },
            ..fast.expect("a cluster has a device").clone()
        }
    }

    /// Returns the device that sets the pace if all do the same work: the kind with the lowest rate, with the
    /// smallest memory of all kinds.
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
            ("gbit = 800", "gbit = -1", "level 'pod': gbit is -1, expected 1e-6 to 1e6"),
            ("= 3\n", "= -3\n", "level 'node': latency_us is -3, expected 0 or 1e-6 to 1e9"),
            ("= 80", "= nan", "device 'a100': memory_gib is NaN, expected 1e-6 to 1e6"),
            ("\"pod\"", "\"node\"", "level 'node' appears twice, as level 1 and level 2"),
        ] {
            assert_eq!(refusal(from, to), expected);
        }
        for (line, expected) in [
            ("fixed_mib = 1e308", "fixed_mib is 1e308, expected 0 or 1e-6 to 1e9"),
            ("fixed_mib = 81920", "fixed_mib is 81920 of 81920 MiB, expected less than memory_gib"),
            ("memory_slack = 1e9", "memory_slack is 1e9, expected 0 or 1e-6 to 10"),
            (
                "efficiency = [[1, 0.5], [1, 0.6]]",
                "efficiency at 1 gflop follows that at 1 gflop, expected more gflop in every pair",
            ),
            ("efficiency = [[1, 1.5]]", "efficiency at 1 gflop is 1.5, expected 1e-6 to 1"),
        ] {
            let found = refusal("[[level]]", &format!("{line}\n[[level]]"));
            assert_eq!(found, format!("device 'a100': {expected}"));
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
    fn links_may_differ() {
        let with = |text: &str| TWO_NODES.replacen("gbit = 800", text, 1);
        let cluster = Cluster::parse(&with("gbit_matrix = [[0, 800], [80, -1]]")).unwrap();
        let level = &cluster.levels[1];
        assert_eq!((level.bytes_per_s, level.latency_s), (1e10, 1e-6 * 10.0));
        assert_eq!(level.links.as_ref().unwrap().one(0, 1).bytes_per_s, 1e11);
        for (text, expected) in [
            ("", "level 'pod' has no gbit, expected a number"),
            ("gbit = 1\ngbit_matrix = []", "level 'pod': both gbit and gbit_matrix, expected one"),
            ("latency_us_matrix = [[0, 1], [1, 0]]", "level 'pod' has no gbit, expected a number"),
            ("gbit_matrix = [[0, 1]]", "level 'pod': gbit_matrix has 1 rows, expected 2"),
            (
                "gbit_matrix = [[0, 1], [1]]",
                "level 'pod': row 2 of gbit_matrix has 1 numbers, expected 2",
            ),
            (
                "gbit_matrix = [[0, 1], [0, 0]]",
                "level 'pod': gbit_matrix from 2 to 1 is 0, expected 1e-6 to 1e6",
            ),
            (
                "gbit = 8\nlatency_us_matrix = [[0, 1], [-2, 0]]",
                "level 'pod': both latency_us and latency_us_matrix, expected one",
            ),
        ] {
            let error = Cluster::parse(&with(text)).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
        }
        let many = with("gbit_matrix = []").replacen("size = 2\n", "size = 1025\n", 1);
        let many = Cluster::parse(&many).unwrap_err().to_string();
        assert_eq!(many, "level 'pod': a matrix of 1025 members, expected at most 1024");
        let slow = with("gbit = 8\nlatency_us_matrix = [[0, 1], [-2, 0]]");
        let slow = Cluster::parse(&slow.replacen("latency_us = 10\n", "", 1)).unwrap_err();
        let expected =
            "level 'pod': latency_us_matrix from 2 to 1 is -2, expected 0 or 1e-6 to 1e9";
        assert_eq!(slow.to_string(), expected);
    }

    #[test]
    fn nodes_may_differ_in_their_devices() {
        let mixed = TWO_NODES.to_owned()
            + "[[device]]\nname = \"v100\"\ntflops = 125\nmemory_gib = 16\nmemory_gbyte_per_s = 900\n";
        let error = Cluster::parse(&mixed).unwrap_err().to_string();
        assert_eq!(
            error,
            "2 kinds of devices, but no line 'kinds' says which node has devices of which kind"
        );
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
