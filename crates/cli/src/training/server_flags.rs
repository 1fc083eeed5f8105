//! Flags of a training with all or some parameters on servers.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_model::matches;
use thinwire_report::figures::{bytes, parse_bytes};
use thinwire_server::{Consistency, Format, MemoryLimit};
use thinwire_sync::Mode;
use thinwire_train::Adam;
use thinwire_train::session::ServerSettings;
use thinwire_update::Optimizer;

use super::settings::{GRADIENTS, TRAINING};
use super::snapshots::{SnapshotFlags, Snapshots};
use crate::failure::hinted;
use crate::size::{Elastic, Size, ensure_fixed};

/// Default of `--servers`.
const SERVERS: u32 = 2;
/// Largest number of servers that one command starts. Each server is a process, and all servers are connected
/// to each other: 256 servers have 65,280 connections. Each server has 511 of them, which is fewer than the
/// 1,024 files that a process may usually open.
const SERVERS_HERE_MAX: u32 = 256;
/// Default of `--optimizer`.
const OPTIMIZER: &str = "adamw:lr=0.001";

/// Largest number of parameter names on a line.
const NAMES: usize = 8;

/// Value of `--mode`: the way in which ranks train together, with or without servers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ModeFlag {
    /// Ranks exchange gradients or parameters with each other.
    Ranks(Mode),
    /// Gradients are averaged in every step, and a line recommends another mode if that would hide the
    /// communication.
    Auto,
    /// Servers keep the parameters: ranks push gradients and pull parameters.
    Server,
    /// Servers keep the parameters of `--server-params`, and every rank has a copy of the others.
    Hybrid,
}

impl FromStr for ModeFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<ModeFlag, String> {
        match text {
            // The name that the mode of steps has beside servers.
            "all-reduce" => Ok(ModeFlag::Ranks(Mode::Step)),
            "auto" => Ok(ModeFlag::Auto),
            "server" => Ok(ModeFlag::Server),
            "hybrid" => Ok(ModeFlag::Hybrid),
            text => match text.parse() {
                Ok(mode) => Ok(ModeFlag::Ranks(mode)),
                Err(error) => Err(format!("{error}; or all-reduce, auto, server or hybrid")),
            },
        }
    }
}

/// Value of `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OptimizerFlag {
    /// Form of Adam of the ranks.
    Ranks(Adam),
    /// Rule of servers.
    Servers(Optimizer),
}

impl FromStr for OptimizerFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<OptimizerFlag, String> {
        if let Ok(adam) = text.parse() {
            return Ok(OptimizerFlag::Ranks(adam));
        }
        let rule = Optimizer::parse(text).map(OptimizerFlag::Servers);
        rule.map_err(|error| match text.contains(':') {
            true => error.to_string(),
            false => {
                format!("{error}; or of ranks {}", Adam::ALL.map(|it| it.to_string()).join(", "))
            }
        })
    }
}

impl fmt::Display for OptimizerFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptimizerFlag::Ranks(adam) => adam.fmt(f),
            OptimizerFlag::Servers(rule) => rule.fmt(f),
        }
    }
}

/// Flags of a parameter server.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Parameter server")]
pub struct ServerFlags {
    /// Way in which ranks train [default: all-reduce]
    ///
    /// all-reduce averages gradients in every step. auto does the same, and if no codec hides the communication,
    /// prints which other mode would. With server, servers keep the parameters; with hybrid, they keep those that
    /// --server-params names. delayed:STEPS averages gradients in every step and applies them STEPS steps later.
    /// In the other modes, each rank trains alone and exchanges parameters every few steps: local:STEPS averages
    /// them; diloco:STEPS,fragments=N,delay=STEPS makes a step of an outer optimiser with the average progress of
    /// all ranks (other settings: alpha=PART, outer=RULE, lr=RATE); sma:PULL moves them towards their mean;
    /// pair:STEPS averages them with those of one other rank.
    #[arg(long, help_heading = GRADIENTS, value_name = "MODE")]
    mode: Option<ModeFlag>,
    /// With --mode hybrid, parameters on servers; may be repeated
    ///
    /// Names such as 'embedding.*', where * matches any letters.
    #[arg(long, value_name = "NAMES", hide_short_help = true)]
    server_params: Vec<String>,
    /// Servers with which the job begins [default: 2]
    ///
    /// They are started on this machine (256 at most), unless THINWIRE_MEMBER=new makes this process a worker that
    /// joins.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    servers: Option<u32>,
    #[command(flatten)]
    store: StoreFlags,
    /// Optimiser of ranks, or of servers [default: adamw]
    ///
    /// For ranks: adamw; onebit-adam, which sends raw gradients until the variance has settled or
    /// --codec-warmup-steps are over, and then momenta encoded by --codec [default: onebit]; or
    /// zero-one-adam, which sends momenta from the first steps on, and nothing in most steps once the
    /// learning rate has fallen. For servers: a rule with a constant learning rate [default:
    /// adamw:lr=0.001].
    #[arg(long, value_name = "OPTIMIZER", help_heading = TRAINING)]
    optimizer: Option<OptimizerFlag>,
    #[command(flatten)]
    snapshots: SnapshotFlags,
}

/// Flags of how servers keep their values, whatever these are.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct StoreFlags {
    /// Steps that ranks may be apart [default: sync]
    ///
    /// With servers, how far a rank may be ahead of the slowest: sync (all gradients of a step are one update),
    /// bounded:STEPS or async.
    #[arg(long, value_name = "HOW", value_parser = |text: &str| Consistency::parse(text))]
    consistency: Option<Consistency>,
    /// Servers that may be lost without losing values [default: 1]
    ///
    /// This many servers may be lost at the same time. With one server, the default is 0.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=15))]
    replicas: Option<u32>,
    /// Format in which values and gradients are sent [default: f32]
    ///
    /// With servers: f32, f16 or int8.
    #[arg(long, value_name = "FORMAT", value_parser = |text: &str| Format::parse(text), hide_short_help = true)]
    values: Option<Format>,
    #[command(flatten)]
    limits: LimitFlags,
}

impl StoreFlags {
    /// Returns one of the given flags.
    pub fn flag(&self) -> Option<String> {
        let given = [
            self.consistency.map(|value| format!("--consistency {value}")),
            self.replicas.map(|value| format!("--replicas {value}")),
            self.values.map(|value| format!("--values {value}")),
            self.limits.flag(),
        ];
        given.into_iter().flatten().next()
    }
}

/// Flags of the limits of servers.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
struct LimitFlags {
    /// Memory of rows of each server, such as 2GB [default: any]
    ///
    /// Applies to each server that is started here; rows beyond the limit are evicted to a file in --spill-dir.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, hide_short_help = true)]
    server_memory: Option<u64>,
    /// With --server-memory, folder for evicted rows, on a disk
    ///
    /// The files have no names, and disappear when their servers end.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    spill_dir: Option<PathBuf>,
}

impl LimitFlags {
    /// Returns the memory limit of a server, if there is one.
    ///
    /// # Errors
    /// If one flag is given without the other.
    fn resolve(&self) -> Result<Option<MemoryLimit>> {
        let Some(flag) = self.flag() else { return Ok(None) };
        let (without, hint) = match (self.server_memory, self.spill_dir.clone()) {
            (Some(bytes_max), Some(folder)) => return Ok(Some(MemoryLimit { bytes_max, folder })),
            (Some(_), None) => ("a folder for the rows beyond it", "add --spill-dir FOLDER"),
            (None, _) => ("a limit of memory", "add --server-memory BYTES"),
        };
        Err(hinted(anyhow!("{flag} needs {without}"), format!("{hint}, or leave {flag} out")))
    }

    /// Returns one of the given flags.
    fn flag(&self) -> Option<String> {
        let memory =
            self.server_memory.map(|limit| format!("--server-memory {}", bytes(limit as f64)));
        let folder = self.spill_dir.as_ref();
        memory.or(folder.map(|folder| format!("--spill-dir {}", folder.display())))
    }
}

/// Settings of a training with servers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerMode {
    /// Settings that ranks send to the servers.
    pub settings: ServerSettings,
    /// Patterns of the parameters on servers; empty if all parameters are on servers.
    patterns: Vec<String>,
    /// Number of ranks if it is fixed, otherwise 0.
    pub ranks: u32,
    /// Memory limit of each server that is started here.
    pub memory: Option<MemoryLimit>,
    /// Snapshots of the servers' tables.
    pub snapshots: Snapshots,
}

impl ServerFlags {
    /// Returns the flags of a training in which servers keep the parameter with this name and update it with
    /// `optimizer`.
    pub fn of_parameter(
        name: &str,
        optimizer: Optimizer,
        servers: u32,
        store: StoreFlags,
    ) -> ServerFlags {
        ServerFlags {
            mode: Some(ModeFlag::Hybrid),
            server_params: vec![name.to_owned()],
            servers: Some(servers),
            store,
            optimizer: Some(OptimizerFlag::Servers(optimizer)),
            snapshots: SnapshotFlags::default(),
        }
    }

    /// Returns the requested mode without servers, if any.
    pub fn mode(&self) -> Option<Mode> {
        match self.mode {
            Some(ModeFlag::Ranks(mode)) => Some(mode),
            Some(ModeFlag::Auto) => Some(Mode::Step),
            _ => None,
        }
    }

    /// Returns the requested form of Adam, if any.
    pub fn adam(&self) -> Option<Adam> {
        match self.optimizer {
            Some(OptimizerFlag::Ranks(adam)) => Some(adam),
            _ => None,
        }
    }

    /// Returns whether to recommend another mode if that would hide the communication.
    pub fn advises(&self) -> bool {
        self.mode == Some(ModeFlag::Auto)
    }

    /// Returns the settings, or `None` in a mode without servers.
    ///
    /// # Errors
    /// If a flag needs another one that is missing.
    pub fn resolve(&self, size: Size) -> Result<Option<ServerMode>> {
        let Some(mode @ (ModeFlag::Server | ModeFlag::Hybrid)) = self.mode else {
            return self.refuse().map(|()| None);
        };
        self.check_patterns()?;
        let ranks = match mode {
            ModeFlag::Hybrid => ensure_fixed(Some(size), "--mode hybrid")?,
            _ => size.fixed(),
        };
        let servers = self.servers.unwrap_or(SERVERS);
        let backups = self.store.replicas.unwrap_or(1.min(servers - 1));
        if backups >= servers {
            let error = anyhow!(
                "--replicas {backups} needs {} servers for each shard, found {servers}",
                backups + 1
            );
            return Err(hinted(error, format!("start more: --servers {}", backups + 1)));
        }
        let optimizer = match self.optimizer {
            Some(OptimizerFlag::Servers(rule)) => rule,
            Some(OptimizerFlag::Ranks(adam)) => {
                let error = anyhow!(
                    "--optimizer {adam} cannot be used with servers: they have rules of their own"
                );
                return Err(hinted(
                    error,
                    format!("give an optimizer of servers, such as --optimizer {OPTIMIZER}"),
                ));
            }
            None => Optimizer::parse(OPTIMIZER).expect("the usual optimiser is one"),
        };
        let settings = ServerSettings {
            servers,
            consistency: self.store.consistency.unwrap_or(Consistency::Sync),
            optimizer,
            backups,
            is_hybrid: mode == ModeFlag::Hybrid,
            values: self.store.values.unwrap_or(Format::F32),
        };
        Ok(Some(ServerMode {
            settings,
            patterns: self.server_params.clone(),
            ranks: ranks.unwrap_or_default(),
            memory: self.store.limits.resolve()?,
            snapshots: self.snapshots.resolve()?,
        }))
    }

    /// Checks that `--server-params` is given in hybrid mode and only in it.
    fn check_patterns(&self) -> Result<()> {
        match (self.mode, self.server_params.first()) {
            (Some(ModeFlag::Hybrid), None) => Err(hinted(
                anyhow!("--mode hybrid needs the names of the parameters on servers"),
                "give the names with --server-params 'embedding.*', or give --mode server",
            )),
            (Some(ModeFlag::Server), Some(pattern)) => Err(hinted(
                anyhow!(
                    "--server-params '{pattern}' cannot be used with --mode server: servers have all parameters"
                ),
                "give --mode hybrid, or leave --server-params out",
            )),
            _ => Ok(()),
        }
    }

    fn refuse(&self) -> Result<()> {
        let given = [
            self.servers.map(|value| format!("--servers {value}")),
            self.store.flag(),
            self.optimizer
                .filter(|value| matches!(value, OptimizerFlag::Servers(_)))
                .map(|value| format!("--optimizer {value}")),
            self.server_params.first().map(|pattern| format!("--server-params '{pattern}'")),
            self.snapshots.flag(),
        ];
        match given.into_iter().flatten().next() {
            None => Ok(()),
            Some(flag) => Err(hinted(
                anyhow!("{flag} needs servers"),
                format!("add --mode server or --mode hybrid, or leave {flag} out"),
            )),
        }
    }
}

impl ServerMode {
    /// Returns whether ranks average the gradients of some parameters among themselves.
    pub fn is_hybrid(&self) -> bool {
        self.settings.is_hybrid
    }

    /// Checks that the servers of the job can be started on this machine.
    ///
    /// # Errors
    /// If there are too many servers, there is nothing to restore, or one of their folders is not writable.
    pub fn check_start(&self) -> Result<()> {
        let servers = self.settings.servers;
        if servers > SERVERS_HERE_MAX {
            let connections = u64::from(servers) * u64::from(servers - 1);
            let error = anyhow!(
                "--servers {servers} on this machine, expected at most {SERVERS_HERE_MAX}: each is a process with a \
                 connection to every other one, {connections} in all"
            );
            let hint = "begin with fewer; more can join from other machines: thinwire server --coordinator HOST:PORT";
            return Err(hinted(error, hint));
        }
        self.memory.as_ref().map_or(Ok(()), MemoryLimit::check)?;
        self.snapshots.check()
    }

    /// Returns an elastic job with the servers that its launcher starts. A rank of a hybrid job is not
    /// replaced.
    pub fn job(&self, elastic: Elastic, silence: Option<Duration>) -> Elastic {
        Elastic {
            servers: self.settings.servers,
            server_arguments: self.server_arguments(),
            replaces: !self.is_hybrid(),
            silence,
            ..elastic
        }
    }

    /// Returns the flags of a server that the launcher starts.
    fn server_arguments(&self) -> Vec<OsString> {
        let limit = self.memory.iter().flat_map(limit_arguments);
        self.snapshots.server_arguments().into_iter().chain(limit).collect()
    }

    /// Refuses a memory limit if this process is a rank started by hand, which starts no servers.
    ///
    /// # Errors
    /// If there is a limit.
    pub fn refuse_limits(&self) -> Result<()> {
        if self.memory.is_none() {
            return Ok(());
        }
        let error = anyhow!("--server-memory has no effect on a rank that starts no servers");
        Err(hinted(error, "give --memory and --spill-dir to thinwire server"))
    }

    /// Returns the names of the model's parameters that are on servers.
    ///
    /// # Errors
    /// If a pattern matches no parameter, or the patterns together match all.
    pub fn served(&self, names: &[String]) -> Result<Vec<String>> {
        let count = names.len();
        let hint = format!("parameters are called {}", shown(names));
        let is_idle = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
        if let Some(pattern) = self.patterns.iter().find(is_idle) {
            let error =
                anyhow!("--server-params '{pattern}' fits none of the model's {count} parameters");
            return Err(hinted(error, hint));
        }
        let fits = |name: &&String| self.patterns.iter().any(|pattern| matches(pattern, name));
        let served: Vec<String> = names.iter().filter(fits).cloned().collect();
        match (self.is_hybrid(), served.len()) {
            (false, _) => Ok(names.to_vec()),
            (true, fitting) if fitting == count => {
                let error = anyhow!("--server-params fits all of the model's {count} parameters");
                Err(hinted(
                    error,
                    format!("give --mode server, or patterns for only some parameters: {hint}"),
                ))
            }
            (true, _) => Ok(served),
        }
    }

    /// Returns the settings that must be equal on all ranks.
    pub fn facts(&self) -> impl Iterator<Item = (String, String)> {
        let settings = &self.settings;
        [
            ("--mode", if self.is_hybrid() { "hybrid" } else { "server" }.to_owned()),
            ("--server-params", self.patterns.join(" ")),
            ("--servers", settings.servers.to_string()),
            ("--consistency", settings.consistency.to_string()),
            ("--optimizer", settings.optimizer.to_string()),
            ("--replicas", settings.backups.to_string()),
            ("--values", settings.values.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
    }
}

/// Returns the first names of a list.
pub fn shown(names: &[String]) -> String {
    let more = if names.len() > NAMES { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(NAMES)].join(", "))
}

/// Returns the flags for a memory limit of a server that the launcher starts.
fn limit_arguments(limit: &MemoryLimit) -> [OsString; 4] {
    let MemoryLimit { bytes_max, folder } = limit;
    let folder = folder.clone().into_os_string();
    ["--memory".into(), format!("{bytes_max}B").into(), "--spill-dir".into(), folder]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hybrid(patterns: &[&str]) -> ServerMode {
        let server_params = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let flags =
            ServerFlags { mode: Some(ModeFlag::Hybrid), server_params, ..ServerFlags::default() };
        flags.resolve(Size::Fixed(2)).unwrap().unwrap()
    }

    #[test]
    fn servers_have_some_parameters_and_not_all() {
        let names = ["embedding.weight", "block.0.up", "block.0.down", "norm"].map(str::to_owned);
        assert_eq!(hybrid(&["embedding.*"]).served(&names).unwrap(), names[..1]);
        assert_eq!(hybrid(&["norm", "*.up"]).served(&names).unwrap(), [&names[1][..], "norm"]);
        let refused = |patterns: &[&str]| {
            crate::failure::lines(&hybrid(patterns).served(&names).unwrap_err())
        };
        let hint = "parameters are called embedding.weight, block.0.up, block.0.down, norm";
        let (error, found) = refused(&["norm", "embd.*"]);
        assert_eq!(error, "--server-params 'embd.*' fits none of the model's 4 parameters");
        assert_eq!(found.as_deref(), Some(hint));
        let (error, _) = refused(&["*o*", "em*"]);
        assert_eq!(error, "--server-params fits all of the model's 4 parameters");
    }
}
