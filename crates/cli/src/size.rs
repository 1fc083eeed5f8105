//! Number of ranks of a job: fixed, or within bounds while it runs.

use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_job::elastic::Store;

use crate::failure::hinted;
use crate::place::Flags;

/// Number of ranks, as `N` or `MIN:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A fixed number of ranks.
    Fixed(u32),
    /// The bounds of an elastic job, which ranks may join and leave.
    Elastic {
        /// Smallest number of ranks that train.
        min: u32,
        /// Largest number of ranks that train.
        max: u32,
    },
}

impl Size {
    /// Returns the number of ranks if it is fixed.
    pub const fn fixed(self) -> Option<u32> {
        match self {
            Size::Fixed(ranks) => Some(ranks),
            Size::Elastic { .. } => None,
        }
    }

    /// Returns the bounds of an elastic job.
    pub const fn bounds(self) -> Option<RangeInclusive<u32>> {
        match self {
            Size::Fixed(_) => None,
            Size::Elastic { min, max } => Some(min..=max),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(ranks) => write!(f, "{ranks}"),
            Size::Elastic { min, max } => write!(f, "{min}:{max}"),
        }
    }
}

/// Returns a parser for sizes of up to `most` ranks.
pub fn up_to(most: u32) -> impl Fn(&str) -> Result<Size, String> + Clone {
    move |text| match text.split_once(':') {
        None => number(text, most).map(Size::Fixed),
        Some((min, max)) if min.is_empty() || max.is_empty() => {
            let missing = if min.is_empty() { "MIN" } else { "MAX" };
            Err(format!("{missing} is missing, expected MIN:MAX such as 2:4"))
        }
        Some((min, max)) => match (number(min, most)?, number(max, most)?) {
            (min, max) if min <= max => Ok(Size::Elastic { min, max }),
            (min, max) => Err(format!(
                "at least {min} and at most {max} ranks exclude each other, expected MIN:MAX such as {max}:{min}"
            )),
        },
    }
}

fn number(text: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(ranks) if (1..=most).contains(&ranks) => Ok(ranks),
        _ => Err(format!("'{text}' ranks, expected 1 to {most}, or MIN:MAX such as 2:4")),
    }
}

/// Flags of an elastic job besides its size.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Ranks")]
pub struct ElasticFlags {
    /// Dead ranks to replace, at most [default: 0]
    ///
    /// Needs --ranks MIN:MAX. The limit is on all replacements that this command starts.
    #[arg(long, value_name = "N")]
    restarts: Option<u32>,
    /// Largest number of ranks that this command starts [default: MAX]
    ///
    /// Use it with --ranks MIN:MAX if other launchers also start ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), hide_short_help = true)]
    local_ranks: Option<u32>,
    /// Keep the coordinator's state in etcd
    ///
    /// With --ranks MIN:MAX, this allows any machine on which this command runs to coordinate the job.
    #[arg(long, value_name = "etcd://HOST:PORT/JOB", hide_short_help = true)]
    store: Option<Store>,
}

/// An elastic job that this process launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Smallest and largest number of ranks that train.
    pub ranks: RangeInclusive<u32>,
    /// Largest number of replacements of dead ranks.
    pub restarts: u32,
    /// Whether a replacement could take part, so that hints advise starting one.
    pub replaces: bool,
    /// Time of silence after which a rank counts as lost, or `None` for the default.
    pub silence: Option<Duration>,
    /// Largest number of ranks that this process starts.
    pub here: u32,
    /// Store of the coordinator's state, if several launchers share the job.
    pub store: Option<Store>,
    /// Address at which ranks reach the coordinator, host:port. By default it is on this machine.
    pub coordinator: Option<String>,
    /// Number of servers that this process starts.
    pub servers: u32,
    /// Arguments of each server.
    pub server_arguments: Vec<OsString>,
}

impl ElasticFlags {
    /// Returns the elastic job to launch, if the size is `MIN:MAX`.
    ///
    /// # Errors
    /// If replacements are requested for a job of fixed size, or this process has a fixed rank.
    pub fn resolve(&self, size: Option<Size>, flags: &Flags) -> Result<Option<Elastic>> {
        let Some((size, ranks)) = size.and_then(|size| Some((size, size.bounds()?))) else {
            return self.refuse(size).map(|()| None);
        };
        let coordinator = flags.coordinator.clone();
        let flags = match flags.rank {
            // A rank that is started by hand: its coordinator belongs to it.
            Some(_) => flags.clone(),
            None => Flags { coordinator: None, ..flags.clone() },
        };
        if let Some(place) = flags.find()?.filter(|place| place.world > 1) {
            let error = anyhow!("--ranks {size}, but {} gives {} ranks", place.source, place.world);
            return Err(hinted(error, "leave --ranks out inside another launcher's job"));
        }
        let restarts = self.restarts.unwrap_or(0);
        let here = self.local_ranks.unwrap_or(*ranks.end()).min(*ranks.end());
        Ok(Some(Elastic {
            ranks,
            restarts,
            replaces: true,
            silence: None,
            here,
            store: self.store.clone(),
            coordinator,
            servers: 0,
            server_arguments: Vec::new(),
        }))
    }

    fn refuse(&self, size: Option<Size>) -> Result<()> {
        let ranks =
            size.map_or("a fixed number of ranks".to_owned(), |size| format!("--ranks {size}"));
        let error = if let Some(restarts) = self.restarts {
            anyhow!("--restarts {restarts} works only in an elastic job, found {ranks}")
        } else if let Some(here) = self.local_ranks {
            anyhow!("--local-ranks {here} works only in an elastic job, found {ranks}")
        } else if let Some(store) = &self.store {
            anyhow!("--store {store} works only in an elastic job, found {ranks}")
        } else {
            return Ok(());
        };
        Err(hinted(error, "give the fewest and the most ranks: --ranks MIN:MAX"))
    }
}

/// Refuses a fixed size for `what`, which needs an elastic job.
///
/// # Errors
/// If the size is fixed.
pub fn ensure_bounds(size: Size, what: &str) -> Result<RangeInclusive<u32>> {
    size.bounds().ok_or_else(|| {
        let error = anyhow!("{what} needs the fewest and the most ranks, found --ranks {size}");
        hinted(error, format!("give both: --ranks {size}:{size}"))
    })
}

/// Refuses an elastic job for `what`, which needs a fixed number of ranks.
///
/// # Errors
/// If the size is `MIN:MAX`.
pub fn ensure_fixed(size: Option<Size>, what: &str) -> Result<Option<u32>> {
    match size {
        Some(size @ Size::Elastic { max, .. }) => {
            let error = anyhow!("{what} needs a fixed number of ranks, found --ranks {size}");
            Err(hinted(error, format!("give one number: --ranks {max}")))
        }
        _ => Ok(size.and_then(Size::fixed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_bounds() {
        let size = up_to(256);
        assert_eq!(size("3"), Ok(Size::Fixed(3)));
        assert_eq!(size("2:4"), Ok(Size::Elastic { min: 2, max: 4 }));
        assert_eq!(size("2:2").unwrap().to_string(), "2:2");
        let refused = [
            ("0", "'0' ranks, expected 1 to 256, or MIN:MAX such as 2:4"),
            ("-1", "'-1' ranks, expected 1 to 256, or MIN:MAX such as 2:4"),
            ("two", "'two' ranks, expected 1 to 256, or MIN:MAX such as 2:4"),
            ("1:257", "'257' ranks, expected 1 to 256, or MIN:MAX such as 2:4"),
            ("2:2:2", "'2:2' ranks, expected 1 to 256, or MIN:MAX such as 2:4"),
            (
                "99999999999999999999",
                "'99999999999999999999' ranks, expected 1 to 256, or MIN:MAX such as 2:4",
            ),
            (
                "4:2",
                "at least 4 and at most 2 ranks exclude each other, expected MIN:MAX such as 2:4",
            ),
            ("2:", "MAX is missing, expected MIN:MAX such as 2:4"),
            (":4", "MIN is missing, expected MIN:MAX such as 2:4"),
        ];
        for (text, error) in refused {
            assert_eq!(size(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn replacements_are_for_elastic_jobs() {
        let (flags, none) = (Flags::default(), ElasticFlags::default());
        let two = ElasticFlags { restarts: Some(2), ..ElasticFlags::default() };
        let size = |text| Some(up_to(8)(text).unwrap());
        let elastic = |restarts| {
            let (ranks, here) = (2..=4, 4);
            Some(Elastic {
                ranks,
                restarts,
                replaces: true,
                silence: None,
                here,
                store: None,
                coordinator: None,
                servers: 0,
                server_arguments: Vec::new(),
            })
        };
        assert_eq!(none.resolve(size("2:4"), &flags).unwrap(), elastic(0));
        assert_eq!(two.resolve(size("2:4"), &flags).unwrap(), elastic(2));
        assert_eq!(none.resolve(size("4"), &flags).unwrap(), None);
        let error = two.resolve(size("4"), &flags).unwrap_err();
        let said = "--restarts 2 works only in an elastic job, found --ranks 4";
        assert_eq!(error.to_string(), said);
        assert!(two.resolve(None, &flags).is_err());
        let half = ElasticFlags { local_ranks: Some(2), ..ElasticFlags::default() };
        assert_eq!(half.resolve(size("2:4"), &flags).unwrap().unwrap().here, 2);
        let error = half.resolve(size("4"), &flags).unwrap_err();
        let said = "--local-ranks 2 works only in an elastic job, found --ranks 4";
        assert_eq!(error.to_string(), said);
        let store = "etcd://a:1/j".parse().ok();
        let shared = ElasticFlags { store, ..ElasticFlags::default() };
        let error = shared.resolve(size("4"), &flags).unwrap_err();
        let said = "--store etcd://a:1/j works only in an elastic job, found --ranks 4";
        assert_eq!(error.to_string(), said);
    }
}
