//! Flags for the rank and the job of this process.

use anyhow::{Result, anyhow};
use thinwire_job::{
    Form, Host, Overrides, Place, Source, elastic, fresh_token, local_rank, local_ranks, process,
};

use crate::failure::hinted;

/// Where this rank is, given by hand.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[group(skip)]
#[command(next_help_heading = "Ranks")]
pub struct Flags {
    /// Rank of this process, if started by hand
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// Number of ranks, if started by hand
    #[arg(long, value_name = "N")]
    pub world: Option<u32>,
    /// Address of rank 0 for all ranks
    ///
    /// With --ranks MIN:MAX, the address at which this command's coordinator listens.
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// Secret of the job; better as THINWIRE_TOKEN
    ///
    /// All ranks have the same one.
    #[arg(long, env = "THINWIRE_TOKEN", hide_env = true, value_name = "SECRET")]
    pub token: Option<String>,
}

/// Returns the place of a member of an elastic job, without its rank and the number of ranks.
pub fn of_member(member: &elastic::JobAddress) -> Place {
    Place {
        coordinator: member.coordinator.clone(),
        host: Host::Launcher,
        source: Source::Thinwire,
        local_rank: local_rank(&process).unwrap_or(0),
        local_world: local_ranks(&process),
        ..Place::alone(Form::Flags)
    }
}

impl Flags {
    /// Returns this process's place from flags and environment, or `None` if neither gives one.
    ///
    /// # Errors
    /// If flags or variables are incomplete or contradict each other.
    pub fn find(&self) -> Result<Option<Place>> {
        Ok(thinwire_job::find(&self.given(), &process)?)
    }

    /// Returns the job address of this process in an elastic job, or `None` if its job is not elastic.
    ///
    /// # Errors
    /// If its id is not valid, or the address or the token of the coordinator is missing.
    pub fn member(&self) -> Result<Option<elastic::JobAddress>> {
        Ok(elastic::job_address(&self.given(), &process)?)
    }

    /// Returns the job's secret for a place.
    ///
    /// # Errors
    /// If ranks meet at an address other than loopback and the token is missing or too short.
    pub fn token(&self, place: &Place) -> Result<String> {
        Ok(thinwire_job::token(&self.given(), &place.coordinator, &process)?)
    }

    fn given(&self) -> Overrides {
        Overrides {
            rank: self.rank,
            world: self.world,
            coordinator: self.coordinator.clone(),
            token: self.token.clone(),
            form: Form::Flags,
            ..Overrides::default()
        }
    }
}

/// Returns the user's secret, or a new one. An empty secret counts as not given.
///
/// # Errors
/// If the system has no random numbers.
pub fn token_or_fresh(given: Option<&String>) -> Result<String> {
    let given = given.filter(|token| !token.is_empty());
    Ok(given.map_or_else(fresh_token, |token| Ok(token.clone()))?)
}

/// Refuses a number of ranks that contradicts this process's job.
///
/// # Errors
/// If `ranks` is given and is not the number of ranks in the job.
pub fn ensure_ranks(place: &Place, ranks: Option<u32>) -> Result<()> {
    match ranks {
        Some(ranks) if ranks != place.world => Err(hinted(
            anyhow!("--ranks {ranks}, but {} gives {} ranks", place.source, place.world),
            "leave --ranks out inside another launcher's job",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_token_is_replaced_by_a_fresh_one() {
        let given = |token: &str| token_or_fresh(Some(&token.to_owned())).unwrap();
        assert_eq!((given("secret").as_str(), given("").len()), ("secret", 32));
        assert_ne!(given(""), token_or_fresh(None).unwrap());
    }
}
