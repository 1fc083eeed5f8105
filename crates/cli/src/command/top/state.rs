//! State of an elastic job, as reported by its coordinator.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thinwire_server::Stats;
use thinwire_sync::Live;

/// State of the job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct State {
    /// Number of the last epoch; 0 before the first.
    pub epoch: u32,
    /// Requested number of ranks.
    pub target: u32,
    /// Smallest number of ranks that train.
    pub min: u32,
    /// Largest number of ranks that train.
    pub max: u32,
    /// The reason why no epoch can be formed, or `None` if one can.
    pub waiting: Option<String>,
    /// `complete` or `stop` once the job has ended.
    pub end: Option<String>,
    /// Members of the epoch in the order of their ranks.
    pub members: Vec<Process>,
    /// Processes waiting for the next epoch.
    pub newcomers: Vec<Process>,
    /// Servers of a parameter server, if the job has one.
    pub servers: Option<Servers>,
}

/// Servers of the job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Servers {
    /// Number of the servers' last epoch; 0 before the first.
    pub epoch: u32,
    /// The reason why no epoch can be formed, or `None` if one can.
    pub waiting: Option<String>,
    /// Members of the epoch.
    pub members: Vec<Process<ServerFigures>>,
    /// Servers waiting for the next epoch.
    pub newcomers: Vec<Process<ServerFigures>>,
    /// Number of shards.
    pub shards: u32,
    /// Number of shards whose servers are silent and may return.
    pub silent: u32,
    /// Number of shards whose servers are dead.
    pub lost: u32,
}

/// Figures that a server reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServerFigures {
    /// Host of the process.
    pub host: Option<String>,
    /// Process id in the operating system.
    pub pid: Option<u32>,
    /// Rows, memory, requests and staleness of the server.
    #[serde(flatten)]
    pub figures: Stats,
}

/// Process of the job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, bound = "F: Default + DeserializeOwned")]
pub struct Process<F = Live> {
    /// Id, in sixteen digits.
    pub id: String,
    /// Rank in the epoch.
    pub rank: Option<u32>,
    /// `newcomer`, `running`, `halted`, `silent` or `lost`.
    pub standing: String,
    /// Last step of the process.
    pub step: Option<u64>,
    /// Figures that the process reports.
    #[serde(deserialize_with = "if_readable")]
    pub figures: F,
}

impl Servers {
    /// Returns all servers, with those outside the epoch last.
    pub fn processes(&self) -> impl Iterator<Item = &Process<ServerFigures>> {
        self.members.iter().chain(&self.newcomers)
    }

    /// Returns whether some shards have no server, so that ranks that need them wait.
    fn are_away(&self) -> bool {
        let are_lost = self.members.iter().all(|process| process.standing == "lost");
        self.silent + self.lost > 0 || (self.epoch > 0 && (self.waiting.is_some() || are_lost))
    }
}

impl State {
    /// Returns the number of members that are connected.
    pub fn present(&self) -> usize {
        self.members.iter().filter(|process| process.standing != "lost").count()
    }

    /// Returns whether the epoch has as many ranks as requested, so that no newcomer joins.
    fn is_full(&self) -> bool {
        self.epoch > 0 && self.present() >= self.target as usize
    }

    /// Returns the reported standing of a process, or a more exact word: `waiting` if it runs but some
    /// shards have no server, `spare` if it waits until the job needs more ranks, and `joining` if it
    /// waits for the next epoch.
    pub fn state_of<'a>(&self, process: &'a Process) -> &'a str {
        let waits = self.servers.as_ref().is_some_and(Servers::are_away);
        match process.standing.as_str() {
            "newcomer" if self.is_full() => "spare",
            "newcomer" => "joining",
            "running" if waits => "waiting",
            standing => standing,
        }
    }

    /// Parses a coordinator's answer.
    ///
    /// # Errors
    /// If the answer is from another version.
    pub fn of(answer: Value) -> Result<State> {
        serde_json::from_value(answer).context("reading the coordinator's answer")
    }

    /// Returns the figures of rank 0, which include the figures of the whole job.
    pub fn first(&self) -> Option<&Live> {
        self.members.first().map(|process| &process.figures)
    }

    /// Returns all processes, with those without a rank last.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.members.iter().chain(&self.newcomers)
    }
}

/// Parses figures. Programs report any figures; those that cannot be read are omitted.
fn if_readable<'de, D: Deserializer<'de>, F>(from: D) -> Result<F, D::Error>
where
    F: Default + DeserializeOwned,
{
    Value::deserialize(from).map(|value| serde_json::from_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strange_figures_hide_no_process() {
        let process = |figures| json!({ "id": "aa", "standing": "running", "figures": figures });
        let members =
            [process(json!({ "loss": 2.5, "mine": [1] })), process(json!({ "loss": "x" }))];
        let state = State::of(
            json!({ "epoch": 2, "members": members, "newcomers": [process(Value::Null)] }),
        );
        let state = state.unwrap();
        let losses: Vec<Option<f64>> =
            state.processes().map(|process| process.figures.loss).collect();
        assert_eq!(losses, [Some(2.5), None, None]);
    }
}
