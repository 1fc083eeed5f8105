//! Plans made on the spot, for the ranks that are there.

use anyhow::{Context, Result};
use clap::ValueEnum;
use thinwire_collective::Group;
use thinwire_model::named;
use thinwire_plan::cost::{Division, Precision, Sharding};
use thinwire_plan::output::PlanFile;
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::search::{Candidate, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_train::Config;

use super::calibrate;
use crate::output::say;

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
    /// The machines, as the text of a cluster file; they are measured if there is none.
    pub cluster: Option<String>,
    /// The model.
    pub model: Config,
    /// Sequences of a step.
    pub batch: usize,
}

impl Wish {
    /// The model's name.
    pub fn name(&self) -> String {
        let Config { context, width, layers, heads } = self.model;
        format!(
            "gpt:layers={layers},width={width},heads={heads},vocabulary=256,positions={context}"
        )
    }

    /// The plan, the same in all ranks, and their group.
    ///
    /// # Errors
    /// If there is none for these machines, or a peer is lost.
    pub fn plan(&self, group: Group) -> Result<(PlanFile, Group)> {
        let (text, mut group) = match &self.cluster {
            Some(text) => (text.clone(), group),
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
        let (name, sequence) = (self.name(), self.model.context);
        let mut settings =
            Settings { precision: Precision::SINGLE, idle: false, ..Settings::default() };
        for pin in &self.pins {
            settings.pins.push(pin.parse()?);
        }
        if self.parallel == Parallel::Data {
            settings.schedule = Some(Schedule::OneForwardOneBackward);
        }
        let build = {
            let name = name.clone();
            move |batch| named(&name, batch, sequence).map_err(|error| Error::from_model(&error))
        };
        let mut planner = Planner::new(self.batch, settings, build);
        let found = match self.parallel {
            Parallel::Data => planner.plan_for(cluster, &pure_data(cluster.size()))?,
            Parallel::Semi | Parallel::Auto => planner.plan(cluster)?,
        };
        let file = PlanFile::new(&name, sequence, &planner, cluster, &found)?;
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
