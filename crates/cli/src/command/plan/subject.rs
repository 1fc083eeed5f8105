//! Subject of planning: a model on machines, and the file that the plan goes to.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result};
use thinwire_plan::report::PlanFile;
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

use crate::codings::at_least_one;
use crate::file;
use crate::source::{Source, cluster};

/// Flags that every planning command takes.
#[derive(clap::Args)]
pub struct Subject {
    /// The model: a name, or a file such as model.json or model.onnx
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// The machines: a TOML file of devices and levels
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Sequences or images of a step, all ranks together
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub batch: NonZeroUsize,
    /// Tokens of a sequence [default: the model's usual number]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    sequence: Option<NonZeroUsize>,
    /// File for the plan
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// One JSON object: the plan
    #[arg(long)]
    pub json: bool,
}

impl Subject {
    /// The machines.
    ///
    /// # Errors
    /// If the file cannot be read, or is none.
    pub fn cluster(&self) -> Result<Cluster> {
        cluster(&self.cluster, &file::text(&self.cluster, &file::CLUSTER)?)
    }

    /// The model, and the tokens of its sequences.
    ///
    /// # Errors
    /// If the model cannot be read, or has other sequences.
    pub fn source(&self) -> Result<(Source, usize)> {
        let source = Source::open(&self.model)?;
        let sequence = source
            .sequence(self.sequence.map(NonZeroUsize::get))
            .with_context(|| self.model.clone())?;
        Ok((source.read_once(&self.model, sequence)?, sequence))
    }

    /// A planner for the model.
    pub fn planner(&self, (source, sequence): &(Source, usize), settings: Settings) -> Planner {
        let (source, sequence) = (source.clone(), *sequence);
        let build =
            move |batch| source.graph(batch, sequence).map_err(|error| Error::from_model(&error));
        Planner::new(self.batch.get(), settings, build)
    }

    /// Writes the plan if it is to be written.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn write(&self, plan: &PlanFile) -> Result<()> {
        self.output.as_ref().map_or(Ok(()), |path| file::write(path, &plan.text()))
    }
}
