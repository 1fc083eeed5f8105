//! Scenarios: what may befall a cluster while a plan runs.
//!
//! ```toml
//! [[scenario]]
//! name = "busy network"
//! probability = 0.2        # 0.1 unless said; what is left of 1 is the calm case
//! bandwidth = 0.5          # the part that is left of links, of the level named, or all outer ones
//! level = "pod"
//!
//! [[scenario]]
//! name = "straggler"
//! slower = 1.2             # one device takes so much longer
//!
//! [[scenario]]
//! name = "lost"
//! lost = 1                 # units of the innermost level that are gone; of one level, devices
//! ```

use serde::Deserialize;

use crate::Error;
use crate::cluster::{Cluster, LEFT, PROBABILITY, SLOWER, within};

/// Something that may befall a cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// How likely it is.
    #[serde(default = "usual")]
    pub probability: f64,
    /// The part that is left of links' bandwidth.
    #[serde(default = "whole")]
    pub bandwidth: f64,
    /// The level whose links these are; all but the innermost unless said.
    pub level: Option<String>,
    /// How much longer one device takes for everything.
    #[serde(default = "whole")]
    pub slower: f64,
    /// Units of the innermost level that are gone; devices, where there is one level.
    #[serde(default)]
    pub lost: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scenario: Vec<Scenario>,
}

fn usual() -> f64 {
    0.1
}

fn whole() -> f64 {
    1.0
}

impl Scenario {
    /// Nothing befalls, with this probability.
    fn nothing(name: &str, probability: f64) -> Scenario {
        let name = name.to_owned();
        Scenario { name, probability, bandwidth: 1.0, level: None, slower: 1.0, lost: 0 }
    }

    /// Half the bandwidth, a device that takes a fifth longer, and a unit that is lost, where there is
    /// another.
    pub fn usual(cluster: &Cluster) -> Vec<Scenario> {
        let lost = if cluster.levels.len() > 1 { "one node lost" } else { "one device lost" };
        let all = [
            Scenario { bandwidth: 0.5, ..Scenario::nothing("half bandwidth", 0.1) },
            Scenario { slower: 1.2, ..Scenario::nothing("one device +20 %", 0.1) },
            Scenario { lost: 1, ..Scenario::nothing(lost, 0.1) },
        ];
        all.into_iter().filter(|scenario| scenario.check(cluster).is_ok()).collect()
    }

    /// Reads scenarios for a cluster.
    ///
    /// # Errors
    /// If it is no such file, a number is out of range, a level is unknown, or nothing changes.
    pub fn parse(text: &str, cluster: &Cluster) -> Result<Vec<Scenario>, Error> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Error::file(format!("line {line}: {}", error.message().replace('\n', ", ")))
        })?;
        file.scenario.iter().try_for_each(|scenario| scenario.check(cluster))?;
        let sum: f64 = file.scenario.iter().map(|scenario| scenario.probability).sum();
        if sum > 1.0 {
            let found = format!("the probabilities of all scenarios are {sum} together");
            return Err(Error::file(format!("{found}, expected at most 1")));
        }
        Ok(file.scenario)
    }

    fn check(&self, cluster: &Cluster) -> Result<(), Error> {
        let about = format!("scenario '{}'", self.name);
        within(&about, "probability", self.probability, PROBABILITY)?;
        within(&about, "bandwidth", self.bandwidth, LEFT)?;
        within(&about, "slower", self.slower, SLOWER)?;
        let units = cluster.size() / unit(cluster);
        if self.lost >= units {
            let found = format!("{about}: lost is {}", self.lost);
            return Err(Error::file(format!("{found}, expected less than {units}")));
        }
        let names: Vec<&str> = cluster.levels.iter().map(|level| level.name.as_str()).collect();
        match &self.level {
            Some(level) if !names.contains(&level.as_str()) => {
                let expected = names.join(", ");
                let found = format!("{about}: no level is called '{level}'");
                Err(Error::file(format!("{found}, expected one of {expected}")))
            }
            _ if self.changes_nothing() => {
                let expected = "expected bandwidth below 1, slower above 1, or lost above 0";
                Err(Error::file(format!("{about} changes nothing, {expected}")))
            }
            _ => Ok(()),
        }
    }

    fn changes_nothing(&self) -> bool {
        self.bandwidth == 1.0 && self.slower == 1.0 && self.lost == 0
    }

    /// The cluster with what is left of its links.
    pub(super) fn links(&self, cluster: &Cluster) -> Cluster {
        let mut changed = cluster.clone();
        let several = cluster.levels.len() > 1;
        for (at, level) in changed.levels.iter_mut().enumerate() {
            let hit = match &self.level {
                Some(name) => level.name == *name,
                None => at > 0 || !several,
            };
            if hit {
                *level = level.scaled(self.bandwidth);
            }
        }
        changed
    }

    /// What is left of a cluster: as many of the outermost units as are whole.
    pub(super) fn survivors(&self, cluster: &Cluster) -> Option<Cluster> {
        let mut left = self.links(cluster);
        let within: usize =
            left.levels[..left.levels.len() - 1].iter().map(|one| one.size).product();
        let lost = (self.lost * unit(cluster)).div_ceil(within);
        let last = left.levels.last_mut()?;
        *last = last.resized(last.size.checked_sub(lost).filter(|size| *size > 0)?);
        let units = left.size() / left.levels[0].size;
        left.kinds.truncate(units);
        Some(left)
    }
}

/// How many devices are gone together.
pub(super) fn unit(cluster: &Cluster) -> usize {
    if cluster.levels.len() > 1 { cluster.levels[0].size } else { 1 }
}
