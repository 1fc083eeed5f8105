//! Rank and world of this process, from flags and environment.
//!
//! A launcher says so in environment variables, each in its own dialect; a person says so with
//! flags or arguments. This is a pure function from both to a [`Place`], or to none: then nobody
//! launched this process. Explicit values come before the environment, and a dialect whose
//! variables rarely occur by accident before one whose variables do: thinwire and torchrun, msrun,
//! Open MPI, MPICH, Slurm.

use crate::address::{self, PORT};
use crate::dialect::{DIALECTS, unsaid};
use crate::error::Error;
use crate::overrides::Overrides;
use crate::place::{Host, Place, Source};
use crate::slurm;

/// Reads one environment variable; an empty one counts as unset.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's own environment.
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// This process's place, or none if nobody gave it one.
///
/// # Errors
/// If what is given or the variables are incomplete or contradict each other, or
/// [`crate::Kind::NoRank`] if this process is the scheduler that msrun starts beside the ranks.
pub fn find(overrides: &Overrides, variables: Variables<'_>) -> Result<Option<Place>, Error> {
    let found = match by_hand(overrides, variables)? {
        Some(place) => Some(place),
        None => joined(variables)?,
    };
    let Some(mut place) = found else {
        return overrides
            .coordinator
            .as_ref()
            .map_or(Ok(None), |_| Err(lone_coordinator(overrides)));
    };
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

/// The number of ranks of this process's job on its machine, itself included: as the launcher says,
/// or all if they meet on loopback; 1 for a process without a launcher, and if the number is
/// unknown.
pub fn local_ranks(variables: Variables<'_>) -> u32 {
    joined(variables).ok().flatten().map_or(1, |place| place.local_world)
}

fn lone_coordinator(overrides: &Overrides) -> Error {
    let [coordinator, rank, world] =
        ["coordinator", "rank", "world"].map(|name| overrides.form.name(name));
    Error::invalid(format!("{coordinator} without {rank} and {world}"))
}

fn by_hand(overrides: &Overrides, variables: Variables<'_>) -> Result<Option<Place>, Error> {
    let form = overrides.form;
    let without = |overrides: String, missing| {
        Err(Error::invalid(format!("{overrides} without {}", form.name(missing))))
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
    // Whoever names ranks may still have been launched: the launcher knows who shares this machine.
    let launched = joined(variables).ok().flatten().map(|place| place.local_world.min(world));
    let local_world = launched.unwrap_or_else(|| unsaid(&coordinator, world));
    let source = Source::Overrides(form);
    let job = slurm::step_of(variables, rank, world).map(|step| step.to_string());
    Ok(Some(Place { rank, world, local_world, coordinator, source, job, ..Place::alone(form) }))
}

fn joined(variables: Variables<'_>) -> Result<Option<Place>, Error> {
    DIALECTS.iter().find_map(|dialect| dialect.place(variables).transpose()).transpose()
}
