//! Machines for which a plan is made, as described by a file, and a comparison with the actual links.

use std::path::{Path, PathBuf};

use anyhow::Result;
use thinwire_link::Bandwidth;
use thinwire_plan::Cluster;

use crate::link::rate_in_words;
use crate::{file, source};

/// Ratio below which two rates count as equal.
const ALIKE: f64 = 1.1;

/// Largest number of ranks that --ranks can start.
pub const RANKS_MAX: usize = 256;

/// A cluster file.
#[derive(Clone, Debug)]
pub struct Machines {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the cluster file.
    pub text: String,
    /// Number of devices.
    pub devices: usize,
    /// Bytes per second that each device can send over the slowest level while all devices send.
    bytes_per_s: f64,
}

impl Machines {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a cluster file.
    pub fn read(path: &Path) -> Result<Machines> {
        let text = file::text(path, &file::CLUSTER)?;
        let cluster = source::cluster(path, &text)?;
        let (devices, bytes_per_s) = (cluster.size(), slowest(&cluster));
        Ok(Machines { path: path.to_owned(), text, devices, bytes_per_s })
    }

    /// Returns a warning if the emulated bandwidth of links differs from the bandwidth in the file.
    pub fn warning(&self, limit: Option<Bandwidth>) -> Option<String> {
        let limit = limit.filter(|_| self.devices > 1)?;
        let times = self.bytes_per_s / limit.bytes_per_s();
        if (1.0 / ALIKE..=ALIKE).contains(&times) {
            return None;
        }
        let expected = Bandwidth::bits_per_s((8.0 * self.bytes_per_s).round());
        let longer = if times > 1.0 { "longer" } else { "less" };
        Some(format!(
            "warning: {} has links of {} to a device, here {} is emulated: steps will take {longer} than predicted; give --link {expected}",
            self.path.display(),
            rate_in_words(expected),
            rate_in_words(limit),
        ))
    }
}

/// Returns the lowest rate of a device over any level, as its share of the members' port.
fn slowest(cluster: &Cluster) -> f64 {
    let (mut within, mut least) = (1.0, f64::INFINITY);
    for level in cluster.levels.iter().filter(|level| level.size > 1) {
        least = least.min(level.bytes_per_s / within);
        within *= level.size as f64;
    }
    least
}

/// Returns a hint about how to start `ranks` ranks, with `other` as the alternative.
pub fn start_hint(ranks: usize, other: &str) -> String {
    match ranks <= RANKS_MAX {
        true => format!("start {ranks} ranks, or {other}"),
        false => format!(
            "start every rank by itself with --rank, --world {ranks} and --coordinator, or by torchrun, mpirun or srun; or {other}"
        ),
    }
}

/// Returns a checksum of a file's text, which ranks compare.
pub fn checksum(text: &str) -> String {
    format!("a file with checksum {:08x}", thinwire_wire::checksum(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_another_rate_are_warned_of() {
        let text = "[[device]]\nname = \"a\"\ntflops = 1\nmemory_gib = 1\nmemory_gbyte_per_s = 1\n\
            [[level]]\nname = \"node\"\nsize = 2\nlatency_us = 1\ngbit = 8\n\
            [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 1\ngbit = 2\n";
        let cluster = Cluster::parse(text).unwrap();
        let machines = Machines {
            path: "c.toml".into(),
            text: text.to_owned(),
            devices: cluster.size(),
            bytes_per_s: slowest(&cluster),
        };
        let said = |limit| machines.warning(Some(Bandwidth::bits_per_s(limit)));
        assert_eq!((said(1e9), said(1.05e9), machines.warning(None)), (None, None, None));
        assert_eq!(
            said(1e8).unwrap(),
            "warning: c.toml has links of 1 Gbit/s to a device, here 100 Mbit/s is emulated: steps will take longer than predicted; give --link 1gbit"
        );
        assert!(said(1e10).unwrap().contains("take less than"));
    }

    #[test]
    fn more_ranks_than_one_command_starts_are_started_one_by_one() {
        assert_eq!(start_hint(256, "less"), "start 256 ranks, or less");
        assert!(start_hint(257, "less").contains("--rank, --world 257 and --coordinator"));
    }
}
