//! The place of a rank in a job: rank, world, local ranks and rendezvous, and the source of these
//! values.

use std::fmt;

use thinwire_wire::World;

use crate::address::PORT;
use crate::error::Error;
use crate::overrides::Form;

/// The place of a rank in a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// My rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// My index among the ranks of this host.
    pub local_rank: u32,
    /// Number of ranks on this host; 1 if the launcher does not give it.
    pub local_world: u32,
    /// Address of the rendezvous store, as host:port.
    pub coordinator: String,
    /// Process that runs the store.
    pub host: Host,
    /// Source of these values: a launcher's environment or the user's explicit values.
    pub source: Source,
    /// The launcher's name of the job or job step, the same for all ranks, if there is one.
    pub job: Option<String>,
}

impl Place {
    /// Returns the place of a process without a launcher: a world of one rank.
    pub fn alone(form: Form) -> Place {
        Place {
            rank: 0,
            world: 1,
            local_rank: 0,
            local_world: 1,
            coordinator: format!("127.0.0.1:{PORT}"),
            host: Host::RankZero,
            source: Source::Overrides(form),
            job: None,
        }
    }

    /// Returns my rank and the number of ranks.
    ///
    /// # Errors
    /// If there is no such rank.
    pub fn world(&self) -> Result<World, Error> {
        World::new(self.rank, self.world).map_err(|error| {
            let error =
                Error::because(format!("taking the place that {} gives", self.source), error);
            self.explain(error)
        })
    }

    /// Adds to an error, as a possible cause, the variables that an interactive shell or an outer job may
    /// have left.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let (Source::Slurm, Some(job)) = (self.source, &self.job) else { return error };
        error.with_hint(format!(
            "SLURM_PROCID and SLURM_STEP_NUM_TASKS make this process rank {} of {} of {job}: if srun did not \
             start one for each rank, as in an interactive shell, unset SLURM_STEP_ID",
            self.rank, self.world
        ))
    }
}

/// Process that runs the rendezvous store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// Another process: `thinwire run`, the command that started this one, or a program that called
    /// [`crate::open`].
    Launcher,
    /// Rank 0 itself.
    #[default]
    RankZero,
}

/// Source of a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A person's explicit values.
    Overrides(Form),
    /// thinwire's own launcher.
    Thinwire,
    /// torchrun, or anything that sets RANK and WORLD_SIZE.
    Torchrun,
    /// MindSpore's msrun.
    Msrun,
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
            Source::Overrides(Form::Flags) => "--rank and --world",
            Source::Overrides(Form::Arguments) => "rank and world",
            Source::Thinwire => "thinwire run",
            Source::Torchrun => "RANK and WORLD_SIZE",
            Source::Msrun => "msrun",
            Source::OpenMpi => "mpirun (Open MPI)",
            Source::Mpich => "mpirun (MPICH)",
            Source::Slurm => "srun",
        })
    }
}
