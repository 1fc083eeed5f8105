//! Which rank of which world this process is.
//!
//! A launcher says so in environment variables, each in its own dialect; a person says so with
//! flags. This is a pure function from both to a [`Place`], or to none: then the command starts
//! its own ranks. Flags come before the environment, and a dialect with fewer accidents before
//! one with more: thinwire and torchrun, Open MPI, MPICH, Slurm.

mod dialect;

use std::fmt;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use crate::failure::{OrHint, hinted};
use dialect::DIALECTS;

/// The port where rank 0 waits for the others if nobody names one.
pub const PORT: u16 = 29417;

/// Where this rank is, given by hand.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Several hosts")]
pub struct Flags {
    /// This process's rank, when ranks are started by hand
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// How many ranks there are, when they are started by hand
    #[arg(long, value_name = "N")]
    pub world: Option<u32>,
    /// Where rank 0 can be reached by all ranks
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// The job's secret, the same on all ranks (better given as THINWIRE_TOKEN)
    #[arg(long, env = "THINWIRE_TOKEN", hide_env_values = true, value_name = "SECRET")]
    pub token: Option<String>,
}

/// One rank's place in a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// My rank.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// My index among the ranks of this host.
    pub local_rank: u32,
    /// How many ranks run on this host.
    pub local_world: u32,
    /// Where the rendezvous store listens, as host:port.
    pub coordinator: String,
    /// Who runs that store.
    pub host: Host,
    /// Who told us.
    pub source: Source,
}

impl Place {
    /// Refuses a number of ranks that contradicts the job we are in.
    ///
    /// # Errors
    /// If `ranks` is given and is not the size of the world.
    pub fn ensure_ranks(&self, ranks: Option<u32>) -> Result<()> {
        match ranks {
            Some(ranks) if ranks != self.world => Err(hinted(
                anyhow!("--ranks {ranks}, but {} gives {} ranks", self.source, self.world),
                "leave --ranks out inside another launcher's job",
            )),
            _ => Ok(()),
        }
    }
}

/// Who runs the rendezvous store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// `thinwire run`, or the command that started this one.
    Launcher,
    /// Rank 0 itself.
    RankZero,
}

/// Where a [`Place`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--rank`, `--world` and `--coordinator`.
    Flags,
    /// thinwire's own launcher.
    Thinwire,
    /// torchrun, or anything that sets RANK and WORLD_SIZE.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's or Intel's mpirun.
    Mpich,
    /// Slurm's srun.
    Slurm,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Flags => "--rank and --world",
            Source::Thinwire => "thinwire run",
            Source::Torchrun => "RANK and WORLD_SIZE",
            Source::OpenMpi => "mpirun (Open MPI)",
            Source::Mpich => "mpirun (MPICH)",
            Source::Slurm => "srun",
        })
    }
}

/// Reads one environment variable; an empty one counts as unset.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's own environment.
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// This process's place, or none if nobody gave it one.
///
/// # Errors
/// If flags or variables are incomplete or contradict each other.
pub fn find(flags: &Flags, variables: Variables<'_>) -> Result<Option<Place>> {
    let found = match by_hand(flags, variables)? {
        Some(place) => Some(place),
        None => joined(variables)?,
    };
    let Some(mut place) = found else {
        ensure_no_lone_coordinator(flags)?;
        return Ok(None);
    };
    if let Some(coordinator) = &flags.coordinator {
        place.coordinator = coordinator.clone();
        place.host = Host::RankZero;
    }
    thinwire_wire::World::new(place.rank, place.world)
        .with_context(|| format!("taking the place that {} gives", place.source))?;
    port_of(&place.coordinator)?;
    Ok(Some(place))
}

/// The job's secret for a place: on one machine it may be empty, beyond it must be given.
///
/// # Errors
/// If ranks are to meet beyond loopback and there is no token.
pub fn token(flags: &Flags, coordinator: &str) -> Result<String> {
    match &flags.token {
        Some(token) => Ok(token.clone()),
        None if is_loopback(coordinator) => Ok(String::new()),
        None => Err(hinted(
            anyhow!("no token for a job that meets at {coordinator}"),
            "give every rank the same secret: THINWIRE_TOKEN=$(openssl rand -hex 16)",
        )),
    }
}

/// Whether an address is on this machine only.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn ensure_no_lone_coordinator(flags: &Flags) -> Result<()> {
    ensure!(flags.coordinator.is_none(), "--coordinator without --rank and --world");
    Ok(())
}

fn by_hand(flags: &Flags, variables: Variables<'_>) -> Result<Option<Place>> {
    let (rank, world) = match (flags.rank, flags.world) {
        (None, None) => return Ok(None),
        (Some(rank), Some(world)) => (rank, world),
        (Some(rank), None) => return Err(anyhow!("--rank {rank} without --world")),
        (None, Some(world)) => return Err(anyhow!("--world {world} without --rank")),
    };
    let coordinator = match (&flags.coordinator, variables("THINWIRE_COORDINATOR")) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) => address,
        (None, None) if world == 1 => format!("127.0.0.1:{PORT}"),
        (None, None) => {
            return Err(anyhow!("--rank {rank} without --coordinator"))
                .or_hint("name a host and a port of rank 0: --coordinator 10.0.0.1:29417");
        }
    };
    Ok(Some(Place {
        rank,
        world,
        local_rank: 0,
        local_world: 1,
        coordinator,
        host: Host::RankZero,
        source: Source::Flags,
    }))
}

fn joined(variables: Variables<'_>) -> Result<Option<Place>> {
    for dialect in &DIALECTS {
        if let Some(place) = dialect.place(variables)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn port_of(address: &str) -> Result<u16> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    port.and_then(|port| port.parse().ok())
        .ok_or_else(|| anyhow!("coordinator is '{address}', expected host:port"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found(variables: &str) -> Result<Option<Place>> {
        with(&Flags::default(), variables)
    }

    fn with(flags: &Flags, variables: &str) -> Result<Option<Place>> {
        let map: BTreeMap<String, String> = variables
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        find(flags, &|name| map.get(name).filter(|value| !value.is_empty()).cloned())
    }

    #[test]
    fn every_launcher_is_understood() {
        let table = [
            ("", None),
            (
                "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=500",
                Some((1, 4, 2, "n0:500", Host::RankZero, Source::Torchrun)),
            ),
            (
                "RANK=1 WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=500 TORCHELASTIC_USE_AGENT_STORE=True",
                Some((1, 4, 1, "n0:501", Host::RankZero, Source::Torchrun)),
            ),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=5 THINWIRE_COORDINATOR=n1:7",
                Some((0, 2, 1, "n1:7", Host::RankZero, Source::Torchrun)),
            ),
            (
                "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 THINWIRE_STORE=launcher THINWIRE_COORDINATOR=127.0.0.1:7",
                Some((0, 2, 2, "127.0.0.1:7", Host::Launcher, Source::Thinwire)),
            ),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=5",
                Some((0, 2, 1, "[fe80::1]:5", Host::RankZero, Source::Torchrun)),
            ),
            (
                "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3",
                Some((2, 3, 3, "127.0.0.1:29417", Host::RankZero, Source::OpenMpi)),
            ),
            (
                "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1 MASTER_ADDR=a",
                Some((0, 2, 1, "a:29417", Host::RankZero, Source::Mpich)),
            ),
            (
                "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=9 SLURM_STEP_ID=0 SLURM_NODEID=1 \
                 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_STEP_NODELIST=gpu[07-09,12] SLURM_JOB_ID=123456",
                Some((3, 7, 2, "gpu07:23456", Host::RankZero, Source::Slurm)),
            ),
            // A batch script, and an interactive shell: nobody's ranks.
            ("SLURM_PROCID=0 SLURM_NTASKS=4", None),
            ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0", None),
            ("RANK= WORLD_SIZE=", None),
        ];
        for (variables, expected) in table {
            let expected =
                expected.map(|(rank, world, local_world, coordinator, host, source)| Place {
                    rank,
                    world,
                    local_rank: 0,
                    local_world,
                    coordinator: coordinator.to_owned(),
                    host,
                    source,
                });
            assert_eq!(found(variables).expect(variables), expected, "{variables}");
        }
    }

    #[test]
    fn what_is_missing_or_impossible_is_named() {
        let table = [
            ("RANK=1", "RANK is 1, but WORLD_SIZE is not set"),
            ("RANK=one WORLD_SIZE=2", "RANK is 'one', expected a whole number"),
            (
                "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a",
                "taking the place that RANK and WORLD_SIZE gives: rank 2 is not in a world of 2, expected 0..=1",
            ),
            (
                "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
                "joining mpirun (Open MPI): where rank 0 is, is not known: MASTER_ADDR is not set",
            ),
            (
                "RANK=0 WORLD_SIZE=2 THINWIRE_COORDINATOR=here",
                "coordinator is 'here', expected host:port",
            ),
        ];
        for (variables, expected) in table {
            let (message, _) = crate::failure::lines(&found(variables).unwrap_err());
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn flags_come_before_the_environment() {
        let torchrun = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=500";
        let coordinator = Some("h:9".to_owned());
        let flags = Flags { rank: Some(0), world: Some(2), coordinator, token: None };
        let place = with(&flags, torchrun).unwrap().unwrap();
        assert_eq!((place.rank, place.world, place.coordinator.as_str()), (0, 2, "h:9"));

        let flags = Flags { rank: None, world: None, ..flags };
        let place = with(&flags, torchrun).unwrap().unwrap();
        assert_eq!((place.rank, place.world, place.coordinator.as_str()), (1, 4, "h:9"));
        assert!(with(&flags, "").is_err());
        assert!(with(&Flags { rank: Some(0), ..Flags::default() }, torchrun).is_err());
    }

    #[test]
    fn beyond_loopback_a_token_is_needed() {
        let none = Flags::default();
        for address in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.3.2.1:9"] {
            assert_eq!(token(&none, address).unwrap(), "", "{address}");
        }
        for address in ["10.0.0.1:1", "node7:1", "[fe80::1]:1"] {
            assert!(token(&none, address).is_err(), "{address}");
            let given = Flags { token: Some("s".to_owned()), ..Flags::default() };
            assert_eq!(token(&given, address).unwrap(), "s");
        }
    }
}
