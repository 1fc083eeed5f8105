//! Plans made on the spot, for the ranks that are there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use thinwire_collective::Group;
use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::output::PlanFile;
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::search::{Candidate, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_train::Config;

use super::calibrate;
use super::request::checksum;
use crate::failure::hinted;
use crate::output::say;
use crate::training::model::Model;
use crate::training::plan::check_batch;
use crate::{file, source};

/// How much of a plan is made for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Parallel {
    /// None of it: every rank has the whole model and a part of the batch
    Data,
    /// All that --pin does not say
    Semi,
    /// All of it
    Auto,
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct Wish {
    /// How.
    pub parallel: Parallel,
    /// What the user has decided.
    pub pins: Vec<String>,
    /// The machines; they are measured if there is none.
    pub cluster: Option<Machines>,
    /// The model.
    pub model: String,
    /// Tokens of its sequences.
    pub sequence: usize,
    /// Sequences of a step.
    pub batch: usize,
}

/// The name of a model; by its sizes it is a GPT.
pub fn name(model: &Model) -> String {
    match model {
        Model::Named(named) => named.name.clone(),
        Model::Sizes(Config { context, width, layers, heads }) => format!(
            "gpt:layers={layers},width={width},heads={heads},vocabulary=256,positions={context}"
        ),
    }
}

/// A cluster file.
#[derive(Clone, Debug)]
pub struct Machines {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
    /// How many devices it has.
    pub devices: usize,
}

impl Machines {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Machines> {
        let text = file::text(path, &file::CLUSTER)?;
        let devices = source::cluster(path, &text)?.size();
        Ok(Machines { path: path.to_owned(), text, devices })
    }
}

impl Wish {
    /// Refuses ranks that the machines are not, or that cannot share the batch as they are to.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub fn check_world(&self, ranks: usize, said: &str) -> Result<()> {
        if let Some(Machines { path, devices, .. }) = &self.cluster
            && *devices != ranks
        {
            let error = anyhow!("{} is of {devices} devices, {said} {ranks}", path.display());
            let hint = format!("start {devices} ranks, or leave --cluster out to measure {ranks}");
            return Err(hinted(error, hint));
        }
        match self.parallel {
            Parallel::Data => check_batch(self.batch, ranks),
            Parallel::Semi | Parallel::Auto => Ok(()),
        }
    }

    /// What all ranks must have in common, by name.
    pub fn facts(&self) -> Vec<(String, String)> {
        let cluster = self.cluster.as_ref();
        let pins = if self.pins.is_empty() { "none".to_owned() } else { self.pins.join("; ") };
        [
            ("--parallel", format!("{:?}", self.parallel).to_lowercase()),
            ("model", self.model.clone()),
            ("batch", self.batch.to_string()),
            ("--pin", pins),
            ("--cluster", cluster.map_or("none".to_owned(), |found| checksum(&found.text))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The plan, the same in all ranks, and their group.
    ///
    /// # Errors
    /// If there is none for these machines, or a peer is lost.
    pub fn plan(&self, group: Group) -> Result<(PlanFile, Group)> {
        let (text, mut group) = match &self.cluster {
            Some(machines) => (machines.text.clone(), group),
            None => calibrate::cluster(group)?,
        };
        let first = group.world().rank().index() == 0;
        let made = first.then(|| Ok(self.plan_for(&Cluster::parse(&text)?)?.text()));
        let text = calibrate::of_rank_0(&mut group, made.as_ref());
        // Rank 0's own error has a hint that does not travel.
        let text = match made {
            Some(Err(error)) => return Err(error),
            _ => text?,
        };
        Ok((PlanFile::parse(&text).context("the plan that was made")?, group))
    }

    fn plan_for(&self, cluster: &Cluster) -> Result<PlanFile> {
        let sequence = self.sequence;
        let mut settings = Settings { idle: false, ..Settings::of_executor() };
        for pin in &self.pins {
            settings.pins.push(pin.parse()?);
        }
        if self.parallel == Parallel::Data {
            settings.schedule = Some(Schedule::OneForwardOneBackward);
        }
        let source = source::Source::open(&self.model)?.read_once(&self.model, sequence)?;
        let build =
            move |batch| source.graph(batch, sequence).map_err(|error| Error::from_model(&error));
        let mut planner = Planner::new(self.batch, settings, build);
        let found = match self.parallel {
            Parallel::Data => planner.plan_for(cluster, &pure_data(cluster.size()))?,
            Parallel::Semi | Parallel::Auto => planner.plan(cluster)?,
        };
        let file = PlanFile::new(&self.model, sequence, &planner, cluster, &found)?;
        say(format!(
            "planned: {} stages of {:?}, {} micro-batches, ZeRO {}, {:.1} ms a step",
            file.stage.len(),
            file.mesh,
            file.micro_batches,
            file.zero,
            1e3 * file.step_s
        ));
        Ok(file)
    }
}

fn pure_data(ranks: usize) -> Candidate {
    Candidate {
        stages: 1,
        mesh: vec![ranks],
        micro_batches: 1,
        division: Division::Alike(Sharding::None),
        rule: Rule::Data,
    }
}
