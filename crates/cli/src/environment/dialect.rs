//! How launchers tell a rank its place: each in its own variables.

use anyhow::{Context, Error, Result, anyhow};

use super::{Host, PORT, Place, Source, Variables};
use crate::failure::{OrHint, hinted};

/// The variables in which a launcher gives a rank its place; the first that is set counts.
pub struct Dialect {
    source: Source,
    rank: &'static str,
    world: &'static [&'static str],
    local_rank: &'static str,
    local_world: &'static str,
}

/// In the order in which they count.
pub const DIALECTS: [Dialect; 4] = [
    Dialect {
        source: Source::Torchrun,
        rank: "RANK",
        world: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_world: "LOCAL_WORLD_SIZE",
    },
    Dialect {
        source: Source::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Dialect {
        source: Source::Mpich,
        rank: "PMI_RANK",
        world: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        local_world: "MPI_LOCALNRANKS",
    },
    Dialect {
        source: Source::Slurm,
        rank: "SLURM_PROCID",
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_world: "SLURM_STEP_TASKS_PER_NODE",
    },
];

impl Dialect {
    /// The place that this launcher gives, if it is the one that runs.
    ///
    /// # Errors
    /// If its variables are incomplete or no numbers.
    pub fn place(&self, variables: Variables<'_>) -> Result<Option<Place>> {
        let Some(rank) = number(variables, self.rank)? else { return Ok(None) };
        let Some(world) = first_number(variables, self.world)? else {
            return Err(anyhow!("{} is {rank}, but {} is not set", self.rank, self.world[0]))
                .or_hint(format!("set {} as well, or unset {}", self.world[0], self.rank));
        };
        // A batch script outside srun, or an interactive shell inside it: no job of ours.
        if self.source == Source::Slurm && (variables("SLURM_STEP_ID").is_none() || world == 1) {
            return Ok(None);
        }
        let local_world = match self.source {
            Source::Slurm => slurm_local_world(variables, self.local_world),
            _ => number(variables, self.local_world)?,
        };
        let (coordinator, host) = self.coordinator(variables, world, local_world)?;
        let source = match host {
            Host::Launcher => Source::Thinwire,
            Host::RankZero => self.source,
        };
        let local_rank = number(variables, self.local_rank)?.unwrap_or(0);
        let local_world = local_world.unwrap_or(1);
        Ok(Some(Place { rank, world, local_rank, local_world, coordinator, host, source }))
    }

    fn coordinator(
        &self,
        variables: Variables<'_>,
        world: u32,
        local_world: Option<u32>,
    ) -> Result<(String, Host)> {
        if let Some(address) = variables("THINWIRE_COORDINATOR") {
            let launched = variables("THINWIRE_STORE").as_deref() == Some("launcher");
            return Ok((address, if launched { Host::Launcher } else { Host::RankZero }));
        }
        let port = self.port(variables)?;
        let host = match (variables("MASTER_ADDR"), self.source) {
            (Some(host), _) => host,
            (None, Source::Slurm) => slurm_first_host(variables)?,
            (None, _) if local_world == Some(world) || world == 1 => "127.0.0.1".to_owned(),
            (None, source) => {
                let hint = "set MASTER_ADDR (and MASTER_PORT) on every rank to a host of rank 0";
                let message = "where rank 0 is, is not known: MASTER_ADDR is not set";
                return Err(anyhow!("{message}"))
                    .context(format!("joining {source}"))
                    .or_hint(hint);
            }
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok((format!("{host}:{port}"), Host::RankZero))
    }

    /// torchrun's agent listens on MASTER_PORT itself, so that ours is the next.
    fn port(&self, variables: Variables<'_>) -> Result<u16> {
        let taken = variables("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
        match number(variables, "MASTER_PORT")? {
            Some(port) => u16::try_from(port + u32::from(taken))
                .with_context(|| format!("MASTER_PORT is {port}, expected at most 65534")),
            None if self.source == Source::Slurm => {
                let job = number(variables, "SLURM_JOB_ID")?.unwrap_or(0);
                Ok(20_000 + (job % 10_000) as u16)
            }
            None => Ok(PORT),
        }
    }
}

fn first_number(variables: Variables<'_>, names: &[&str]) -> Result<Option<u32>> {
    for name in names {
        if let Some(value) = number(variables, name)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn number(variables: Variables<'_>, name: &str) -> Result<Option<u32>> {
    variables(name)
        .map(|value| {
            value.parse().map_err(|_| anyhow!("{name} is '{value}', expected a whole number"))
        })
        .transpose()
}

/// "4(x2),3" means 4, 4 and 3 tasks on three nodes.
fn slurm_local_world(variables: Variables<'_>, tasks: &str) -> Option<u32> {
    let node: usize = variables("SLURM_NODEID")?.parse().ok()?;
    let tasks = variables(tasks)?;
    let mut first = 0;
    for group in tasks.split(',') {
        let (count, times) = match group.split_once("(x") {
            Some((count, times)) => (count, times.trim_end_matches(')').parse().ok()?),
            None => (group, 1),
        };
        first += times;
        if node < first {
            return count.parse().ok();
        }
    }
    None
}

/// "gpu[07-09,12],login" starts with gpu07.
fn slurm_first_host(variables: Variables<'_>) -> Result<String> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let list = names.iter().find_map(|name| variables(name)).ok_or_else(|| -> Error {
        hinted(anyhow!("SLURM_STEP_NODELIST is not set"), "set MASTER_ADDR to a host of rank 0")
    })?;
    let Some((prefix, rest)) = list.split_once('[').filter(|(prefix, _)| !prefix.contains(','))
    else {
        return Ok(list.split(',').next().unwrap_or(&list).to_owned());
    };
    let first = rest.split([',', '-', ']']).next().unwrap_or_default();
    let suffix = rest.split_once(']').map_or("", |(_, tail)| tail.split(',').next().unwrap_or(""));
    Ok(format!("{prefix}{first}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_node_list() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-3]", "n1"),
            ("n[05,07].x,m", "n05.x"),
            ("a,n[1-2]", "a"),
        ] {
            let host =
                slurm_first_host(&|name| (name == "SLURM_STEP_NODELIST").then(|| list.to_owned()));
            assert_eq!(host.unwrap(), first);
        }
    }
}
