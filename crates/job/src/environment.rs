//! Rank and world of this process, from flags and environment.
//!
//! Each launcher sets environment variables of its own; a person gives flags or arguments. This module
//! is a pure function from both to a [`Place`], or to `None` if no launcher started this process.
//! Explicit values take precedence over the environment. Of the launchers, those whose variables rarely
//! occur by accident come first: thinwire and torchrun, msrun, Open MPI, MPICH, Slurm.

use crate::address::{self, PORT, joined};
use crate::error::Error;
use crate::overrides::Overrides;
use crate::place::{Host, Place, Source};
use crate::{is_loopback, slurm};

/// Reads one environment variable; an empty one counts as unset.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a variable of the process's own environment.
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns this process's place, or `None` if neither values nor variables give one.
///
/// # Errors
/// If the values or the variables are incomplete or contradict each other, or [`crate::Kind::NoRank`] if this
/// process is the scheduler that msrun starts in addition to the ranks.
pub fn find(overrides: &Overrides, variables: Variables<'_>) -> Result<Option<Place>, Error> {
    let found = match by_hand(overrides, variables)? {
        Some(place) => Some(place),
        None => launched(variables)?,
    };
    let Some(mut place) = found else {
        return overrides
            .coordinator
            .as_ref()
            .map_or(Ok(None), |_| Err(lone_coordinator(overrides)));
    };
    // A launcher's own store is at the address that the launcher gives, not at this one.
    if let Some(coordinator) = &overrides.coordinator {
        place.coordinator = coordinator.clone();
        place.host = Host::RankZero;
    }
    if overrides.host == Host::Launcher {
        place.host = Host::Launcher;
    }
    place.world()?;
    address::check(&place.coordinator)?;
    Ok(Some(place))
}

/// Returns the number of ranks of this process's job on its machine, including itself. This is the
/// number that the launcher gives, or else, if ranks meet on loopback, the number of all ranks. Without
/// a launcher, or if the number is unknown, it is 1.
pub fn local_ranks(variables: Variables<'_>) -> u32 {
    launched(variables).ok().flatten().map_or(1, |place| place.local_world)
}

/// Returns the index of this process among those of its job on its machine; `None` without a launcher.
pub fn local_rank(variables: Variables<'_>) -> Option<u32> {
    // A process of an elastic job has no rank before it has met the others.
    let of_member = || number(variables, "LOCAL_RANK").ok().flatten();
    launched(variables).ok().flatten().map(|place| place.local_rank).or_else(of_member)
}

fn lone_coordinator(overrides: &Overrides) -> Error {
    let [coordinator, rank, world] =
        ["coordinator", "rank", "world"].map(|name| overrides.form.name(name));
    Error::invalid(format!("{coordinator} needs {rank} and {world}"))
}

fn by_hand(overrides: &Overrides, variables: Variables<'_>) -> Result<Option<Place>, Error> {
    let form = overrides.form;
    let without = |overrides: String, missing| {
        Err(Error::invalid(format!("{overrides} needs {}", form.name(missing))))
    };
    let (rank, world) = match (overrides.rank, overrides.world) {
        (None, None) => return Ok(None),
        (Some(rank), Some(world)) => (rank, world),
        (Some(rank), None) => return without(form.value("rank", rank), "world"),
        (None, Some(world)) => return without(form.value("world", world), "rank"),
    };
    let coordinator = match (&overrides.coordinator, variables("THINWIRE_COORDINATOR")) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) => address,
        (None, None) if world == 1 => format!("127.0.0.1:{PORT}"),
        (None, None) => {
            let example = form.value("coordinator", format!("10.0.0.1:{PORT}"));
            return without(form.value("rank", rank), "coordinator").map_err(|error: Error| {
                error.with_hint(format!("name a host and a port of rank 0: {example}"))
            });
        }
    };
    // Whoever names ranks may still have been launched: the launcher knows who shares this machine. Whatever else
    // it says is overridden, so errors in it do not matter.
    let launched = launched(variables).ok().flatten().map(|place| place.local_world.min(world));
    let local_world = launched.unwrap_or_else(|| unsaid(&coordinator, world));
    let source = Source::Overrides(form);
    let job = slurm::step_of(variables, rank, world).map(|step| step.to_string());
    Ok(Some(Place { rank, world, local_world, coordinator, source, job, ..Place::alone(form) }))
}

fn launched(variables: Variables<'_>) -> Result<Option<Place>, Error> {
    DIALECTS.iter().find_map(|dialect| dialect.place(variables).transpose()).transpose()
}

/// The variables in which a launcher gives a rank its place; for each value, the first one that is set
/// counts.
struct Dialect {
    source: Source,
    rank: &'static str,
    world: &'static [&'static str],
    local_rank: &'static str,
    local_world: &'static str,
    /// The launcher's name of the job, if it gives one.
    job: &'static str,
}

/// Dialects in order of precedence.
const DIALECTS: [Dialect; 5] = [
    Dialect {
        source: Source::Torchrun,
        rank: "RANK",
        world: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_world: "LOCAL_WORLD_SIZE",
        job: "TORCHELASTIC_RUN_ID",
    },
    // Not RANK_ID: on the scheduler's host that is 0 where msrun leaves the numbering to others.
    Dialect {
        source: Source::Msrun,
        rank: "MS_NODE_ID",
        world: &["MS_WORKER_NUM"],
        local_rank: "DEVICE_ID",
        local_world: "",
        job: "",
    },
    Dialect {
        source: Source::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: "PMIX_NAMESPACE",
    },
    Dialect {
        source: Source::Mpich,
        rank: "PMI_RANK",
        world: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        local_world: "MPI_LOCALNRANKS",
        job: "",
    },
    SLURM,
];

const SLURM: Dialect = Dialect {
    source: Source::Slurm,
    rank: "SLURM_PROCID",
    world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    local_rank: "SLURM_LOCALID",
    local_world: "SLURM_STEP_TASKS_PER_NODE",
    job: "",
};

impl Dialect {
    /// Returns the place that this launcher gives, if it has started this process.
    ///
    /// # Errors
    /// If its variables are incomplete or are not numbers.
    fn place(&self, variables: Variables<'_>) -> Result<Option<Place>, Error> {
        if self.source == Source::Msrun && !msrun_runs(variables)? {
            return Ok(None);
        }
        let Some(rank) = number(variables, self.rank)? else { return Ok(None) };
        let mut worlds = self.world.iter();
        let world = worlds.find_map(|name| number(variables, name).transpose()).transpose()?;
        let Some(world) = world else {
            let [rank_name, world_name] = [self.rank, self.world[0]];
            return Err(Error::invalid(format!(
                "{rank_name} is {rank}, but {world_name} is not set"
            ))
            .with_hint(format!("set {world_name} as well, or unset {rank_name}")));
        };
        let step = slurm::step_of(variables, rank, world);
        // A batch script outside srun, or an interactive shell inside it: no job of ours.
        if self.source == Source::Slurm && (step.is_none() || world == 1) {
            return Ok(None);
        }
        // `srun --mpi=pmi2` gives the rank and world of MPICH's dialect, but not its local ones.
        let own_or_slurm = |find: &dyn Fn(&Dialect) -> Result<Option<u32>, Error>| {
            let own = find(self)?;
            if own.is_none() && step.is_some() { find(&SLURM) } else { Ok(own) }
        };
        let local_world = own_or_slurm(&|dialect| dialect.local_world(variables))?;
        let port = self.port(variables, step.as_ref())?;
        let (coordinator, host) = self.coordinator(variables, world, port, local_world)?;
        let source = match host {
            Host::Launcher => Source::Thinwire,
            Host::RankZero => self.source,
        };
        let local_rank = own_or_slurm(&|dialect| number(variables, dialect.local_rank))?;
        // Where a launcher does not say it, that of one rank per machine.
        let local_rank = local_rank.unwrap_or(0);
        let local_world = local_world.unwrap_or_else(|| unsaid(&coordinator, world));
        let own = variables(self.job).map(|job| format!("job {job} of {}", self.source));
        let job = own.or_else(|| step.map(|step| step.to_string()));
        Ok(Some(Place { rank, world, local_rank, local_world, coordinator, host, source, job }))
    }

    fn local_world(&self, variables: Variables<'_>) -> Result<Option<u32>, Error> {
        match self.source {
            Source::Slurm => Ok(slurm_local_world(variables, self.local_world)),
            Source::Msrun => Ok(None),
            _ => number(variables, self.local_world),
        }
    }

    fn coordinator(
        &self,
        variables: Variables<'_>,
        world: u32,
        port: u16,
        local_world: Option<u32>,
    ) -> Result<(String, Host), Error> {
        if let Some(address) = variables("THINWIRE_COORDINATOR") {
            let launched = variables("THINWIRE_STORE").as_deref() == Some("launcher");
            return Ok((address, if launched { Host::Launcher } else { Host::RankZero }));
        }
        let host = match (self.source, variables("MASTER_ADDR")) {
            (Source::Msrun, _) => required(variables, "MS_SCHED_HOST")?,
            (_, Some(host)) => host,
            (Source::Slurm, None) => slurm_first_host(variables)?,
            (_, None) if local_world == Some(world) || world == 1 => "127.0.0.1".to_owned(),
            (source, None) => {
                let message = "the host of rank 0 is not known: MASTER_ADDR is not set";
                return Err(Error::invalid(format!("joining {source}: {message}")).with_hint(
                    "set MASTER_ADDR (and MASTER_PORT) on every rank to a host of rank 0",
                ));
            }
        };
        Ok((joined(&host, port), Host::RankZero))
    }

    /// Returns the port on which rank 0 waits for the others; the launcher itself does not listen on it.
    fn port(&self, variables: Variables<'_>, step: Option<&slurm::Step>) -> Result<u16, Error> {
        match self.source {
            // Not the next one: MindSpore's own workers take the free ports after 8118, which is
            // also where its scheduler is unless told otherwise.
            Source::Msrun => Ok(port_beside(number(variables, "MS_SCHED_PORT")?)),
            _ => match number(variables, "MASTER_PORT")? {
                Some(port) => master_port(variables, port),
                None => Ok(step.map_or(PORT, slurm::Step::port)),
            },
        }
    }
}

/// Returns the number of ranks on this machine if the launcher does not give it: all if they meet on
/// loopback, otherwise 1.
fn unsaid(coordinator: &str, world: u32) -> u32 {
    if is_loopback(coordinator) { world } else { 1 }
}

/// Returns whether this is one of msrun's workers; in a dry run no process has a role.
fn msrun_runs(variables: Variables<'_>) -> Result<bool, Error> {
    match variables("MS_ROLE").as_deref() {
        Some("MS_WORKER") => {
            let missing = "set it on every worker, or start msrun with --node_rank on every host";
            required(variables, "MS_NODE_ID").map_err(|error| error.with_hint(missing))?;
            Ok(true)
        }
        Some(role) => Err(Error::no_rank(format!("this process is no rank: MS_ROLE is {role}"))
            .with_hint("msrun runs its scheduler from the same program: end it before it joins")),
        None => Ok(false),
    }
}

/// Returns the port after MASTER_PORT, on which torchrun's agent itself listens.
fn master_port(variables: Variables<'_>, port: u32) -> Result<u16, Error> {
    let taken = variables("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
    port.checked_add(u32::from(taken)).and_then(|port| u16::try_from(port).ok()).ok_or_else(|| {
        let most = u16::MAX - u16::from(taken);
        Error::invalid(format!("MASTER_PORT is {port}, expected at most {most}"))
    })
}

/// Returns a port that two jobs on one host are unlikely to share, from the port of their scheduler; in the
/// range of Slurm's steps.
fn port_beside(scheduler: Option<u32>) -> u16 {
    20_000 + (scheduler.unwrap_or(0) % 10_000) as u16
}

fn required(variables: Variables<'_>, name: &str) -> Result<String, Error> {
    variables(name).ok_or_else(|| Error::invalid(format!("joining msrun: {name} is not set")))
}

fn number(variables: Variables<'_>, name: &str) -> Result<Option<u32>, Error> {
    let parse = |value: String| {
        let invalid = || Error::invalid(format!("{name} is '{value}', expected a whole number"));
        value.parse().map_err(|_| invalid())
    };
    variables(name).map(parse).transpose()
}

fn slurm_local_world(variables: Variables<'_>, tasks: &str) -> Option<u32> {
    let node = variables("SLURM_NODEID")?.parse().ok()?;
    slurm::tasks_of_node(node, &variables(tasks)?)
}

fn slurm_first_host(variables: Variables<'_>) -> Result<String, Error> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let list = names.iter().find_map(|name| variables(name));
    list.map(|list| slurm::first_host(&list)).ok_or_else(|| {
        Error::invalid("SLURM_STEP_NODELIST is not set")
            .with_hint("set MASTER_ADDR to a host of rank 0")
    })
}
