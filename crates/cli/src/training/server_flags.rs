//! Flags of a training whose parameters live on servers.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use thinwire_server::{Consistency, Definition, TableDefinition};
use thinwire_update::{AdamWOptions, Optimizer, Rule};

use crate::failure::hinted;

/// Servers that a launcher starts, unless it is told.
const SERVERS: u32 = 2;
/// Shards per server, so that they can be dealt evenly over other numbers of servers.
const SHARDS_PER_SERVER: u32 = 8;
/// Optimiser of the servers, unless it is told.
const OPTIMIZER: &str = "adamw:lr=0.001";

/// Place where gradients become parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Every rank has the sum of all gradients, and updates its own parameters
    #[default]
    AllReduce,
    /// Servers have the parameters: ranks push gradients and pull parameters
    Server,
}

/// Flags of a parameter server.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Parameter server")]
pub struct ServerFlags {
    /// Where gradients become parameters
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// With --mode server, number of servers to start on this machine [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    servers: Option<u32>,
    /// With --mode server, how far a rank may be ahead of another: sync (all gradients of a step are one
    /// update), bounded:STEPS or async [default: sync]
    #[arg(long, value_name = "HOW", value_parser = |text: &str| Consistency::parse(text))]
    consistency: Option<Consistency>,
    /// With --mode server, the servers' optimiser, whose learning rate is constant
    /// [default: adamw:lr=0.001]
    #[arg(long, value_name = "RULE:lr=RATE", value_parser = |text: &str| Optimizer::parse(text))]
    optimizer: Option<Optimizer>,
    /// With --mode server, servers that can be lost at once without losing parameters [default: 1, or 0
    /// with one server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=15))]
    replicas: Option<u32>,
}

/// Parameter server of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerMode {
    /// Number of servers with which the job begins.
    pub servers: u32,
    consistency: Consistency,
    optimizer: Optimizer,
    backups: u32,
}

/// A parameter as a table of the servers.
pub struct Tabled {
    /// Name of the parameter.
    pub name: String,
    /// Number of rows.
    pub rows: usize,
    /// Values per row; the last row may be padded.
    pub width: usize,
    /// Number of values.
    pub length: usize,
    /// Whether it has two dimensions or more: weight decay is for these alone.
    pub is_matrix: bool,
    /// First values, as a definition names them.
    pub initial: String,
    /// Number of the stream of random numbers of its first values.
    pub stream: u32,
}

impl ServerFlags {
    /// Returns the parameter server, if gradients go to one.
    ///
    /// # Errors
    /// If a flag needs another one.
    pub fn resolve(&self) -> Result<Option<ServerMode>> {
        if self.mode == Mode::AllReduce {
            return self.refuse().map(|()| None);
        }
        let servers = self.servers.unwrap_or(SERVERS);
        let backups = self.replicas.unwrap_or(1.min(servers - 1));
        if backups >= servers {
            let error = anyhow!(
                "--replicas {backups} with {servers} servers, of which each shard needs {}",
                backups + 1
            );
            return Err(hinted(error, format!("start more: --servers {}", backups + 1)));
        }
        let usual = || Optimizer::parse(OPTIMIZER).expect("the usual optimiser is one");
        Ok(Some(ServerMode {
            servers,
            consistency: self.consistency.unwrap_or(Consistency::Sync),
            optimizer: self.optimizer.unwrap_or_else(usual),
            backups,
        }))
    }

    fn refuse(&self) -> Result<()> {
        let given = [
            self.servers.map(|value| format!("--servers {value}")),
            self.consistency.map(|value| format!("--consistency {value}")),
            self.optimizer.map(|value| format!("--optimizer {value}")),
            self.replicas.map(|value| format!("--replicas {value}")),
        ];
        match given.into_iter().flatten().next() {
            None => Ok(()),
            Some(flag) => {
                Err(hinted(anyhow!("{flag} without servers"), "add --mode server, or leave it out"))
            }
        }
    }
}

impl ServerMode {
    /// Returns what the ranks of the job must have in common.
    pub fn facts(&self) -> impl Iterator<Item = (String, String)> {
        [
            ("--mode", "server".to_owned()),
            ("--servers", self.servers.to_string()),
            ("--consistency", self.consistency.to_string()),
            ("--optimizer", self.optimizer.to_string()),
            ("--replicas", self.backups.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
    }

    fn optimizer_of(&self, parameter: &Tabled) -> Optimizer {
        let rule = match self.optimizer.rule {
            Rule::AdamW(options) if !parameter.is_matrix => {
                Rule::AdamW(AdamWOptions { weight_decay: 0.0, ..options })
            }
            rule => rule,
        };
        Optimizer { rule, ..self.optimizer }
    }

    /// Returns the tables of a model's parameters.
    pub fn definition(&self, parameters: &[Tabled], seed: u64) -> Definition {
        let table = |parameter: &Tabled| TableDefinition {
            name: parameter.name.clone(),
            rows: parameter.rows as u64,
            width: parameter.width as u32,
            optimizer: self.optimizer_of(parameter).to_string(),
            initial: parameter.initial.clone(),
            seed,
            stream: parameter.stream,
        };
        Definition {
            tables: parameters.iter().map(table).collect(),
            consistency: self.consistency.to_string(),
            shards: SHARDS_PER_SERVER * self.servers,
            backups: self.backups,
            servers: self.servers,
        }
    }
}
