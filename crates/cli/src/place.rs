//! Flags that say which rank of which job this process is.

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
    /// Rank of this process, started by hand
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// Number of ranks, started by hand
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

/// Returns the place of a member of an elastic job, but for its rank and the number of ranks.
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
    /// This process's place, from flags and environment; none if nobody gave it one.
    ///
    /// # Errors
    /// If flags or variables are incomplete or contradict each other.
    pub fn find(&self) -> Result<Option<Place>> {
        Ok(thinwire_job::find(&self.given(), &process)?)
    }

    /// The job address of this process in an elastic job; none if its job is not elastic.
    ///
    /// # Errors
    /// If its id is none, or the address or the token of the coordinator are missing.
    pub fn member(&self) -> Result<Option<elastic::JobAddress>> {
        Ok(elastic::job_address(&self.given(), &process)?)
    }

    /// The job's secret for a place.
    ///
    /// # Errors
    /// If ranks are to meet beyond loopback and there is no token, or a short one.
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

/// The secret that the user gave, or a fresh one; an empty secret counts as none.
///
/// # Errors
/// If the system has no random numbers.
pub fn token_or_fresh(given: Option<&String>) -> Result<String> {
    let given = given.filter(|token| !token.is_empty());
    Ok(given.map_or_else(fresh_token, |token| Ok(token.clone()))?)
}

/// Refuses a number of ranks that contradicts the job we are in.
///
/// # Errors
/// If `ranks` is given and is not the size of the world.
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
