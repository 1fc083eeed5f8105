//! Plans that are made at the start of a training, for the present ranks.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_collective::Group;
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{PlanFile, counted, devices, plan_file};
use thinwire_plan::search::{Pin, Planner, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_sync::Policy;

use super::calibrate;
use super::footprint::pure_data;
use super::machines::{Machines, checksum, start_hint};
use crate::codings::{self, Activations};
use crate::failure::hinted;
use crate::output::say;
use crate::source;
use crate::training::recipe::check_even_batch;
use crate::training::settings::{Parallel, refuse};

/// The user's request for a plan, as saved in checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Extent of planning.
    pub parallel: Parallel,
    /// Cuts that the user has fixed.
    pub pins: Vec<String>,
    /// The checksum of a cluster file.
    pub machines: Option<String>,
    /// The codecs that the plan may use for gradients, as typed, or `None` if not given.
    pub codec: Option<String>,
    /// The error budget of gradients.
    pub error_budget: Option<f64>,
    /// Codecs of activations.
    pub activations: Activations,
}

impl Asked {
    /// Returns this request with the values of the earlier request for all options that are not given.
    pub fn or(self, before: &Asked) -> Asked {
        let same = self.parallel == before.parallel;
        let given = |pins: &[String]| !pins.is_empty() || !same;
        Asked {
            pins: if given(&self.pins) { self.pins } else { before.pins.clone() },
            machines: self.machines.or_else(|| before.machines.clone()),
            codec: self.codec.or_else(|| before.codec.clone()),
            error_budget: self.error_budget.or(before.error_budget),
            activations: match self.activations.given() || !same {
                true => self.activations,
                false => before.activations.clone(),
            },
            ..self
        }
    }

    /// Returns the planner's settings, with the budgets of codec errors.
    ///
    /// # Errors
    /// If an option is given that this kind of plan does not have.
    pub fn settings(&self) -> Result<Settings> {
        let usual = thinwire_sync::Options::default().error_budget;
        let error_budget = self.error_budget.unwrap_or(usual);
        let codec: Option<Policy> = self.codec.as_deref().map(str::parse).transpose()?;
        let pins = self.pins.iter().map(|pin| pin.parse()).collect::<Result<Vec<Pin>, _>>()?;
        let mut settings = Settings { pins, idle: false, ..Settings::of_executor() };
        if error_budget >= 1.0 {
            let found = format!("--error-budget {error_budget} with --parallel");
            let error = anyhow!("{found}, expected 0 or more and less than 1");
            return Err(hinted(
                error,
                "the error budget is the part of all gradients that may be lost",
            ));
        }
        if self.pins.is_empty() && self.parallel == Parallel::Semi {
            let error = anyhow!("--parallel semi needs a --pin, which decides a cut");
            let hint = "--parallel auto plans all cuts; --pin 'block.*.mlp.up: n=tp' decides a cut";
            return Err(hinted(error, hint));
        }
        if self.parallel != Parallel::Semi {
            let hint = "only --parallel semi lets the user decide some cuts";
            refuse([("--pin", self.pins.first().cloned())], "needs --parallel semi", hint)?;
        }
        if self.parallel == Parallel::Data {
            let hint = "--parallel auto and semi cut models";
            self.activations.refuse(
                "cannot be used with --parallel data: no activations are sent there",
                hint,
            )?;
            settings.schedule = Some(Schedule::OneForwardOneBackward);
        }
        settings.codings = match &codec {
            Some(codec) => codings::of_gradients(codec, error_budget)?,
            None => Vec::new(),
        };
        if settings.codings.is_empty() && error_budget != usual {
            let with = codec.map_or("out --codec".to_owned(), |codec| format!(" codec {codec}"));
            let message = format!("--error-budget {error_budget} has no effect with{with}");
            let hint = "--codec auto, or int8, lets a plan encode gradients";
            return Err(hinted(anyhow!("{message}: nothing is encoded"), hint));
        }
        self.activations.put_in(Settings { error_budget, ..settings })
    }
}

/// Request for a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The options as typed.
    pub asked: Asked,
    /// Decisions of the user, and codecs that may be used.
    pub settings: Settings,
    /// The machines, or `None` if they are to be measured.
    pub cluster: Option<Machines>,
    /// The model.
    pub model: String,
    /// Number of tokens in the model's sequences.
    pub sequence: usize,
    /// Number of sequences in a step.
    pub batch: usize,
}

impl PlanRequest {
    /// Refuses a number of ranks that differs from the machines', or cannot share the batch as required.
    ///
    /// # Errors
    /// If the number of ranks is not possible.
    pub fn check_world(&self, ranks: usize, said: &str) -> Result<()> {
        if let Some(Machines { path, devices, .. }) = &self.cluster
            && *devices != ranks
        {
            let error = anyhow!("{} is of {devices} devices, but {said} {ranks}", path.display());
            let other = format!("leave --cluster out to measure {ranks}");
            let hint = start_hint(*devices, &other);
            return Err(hinted(error, hint));
        }
        match self.asked.parallel {
            Parallel::Data => check_even_batch(self.batch, ranks),
            _ => Ok(()),
        }
    }

    /// Returns the facts, by name, that must be equal on all ranks.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let (cluster, settings) = (self.cluster.as_ref(), &self.settings);
        let Settings { error_budget, activation_budget, .. } = settings;
        let gradients = format!("{} within {error_budget}", listed(&settings.codings));
        let activations = listed(&settings.activation_codings);
        let activations = format!("{activations} within {activation_budget}");
        vec![
            ("--parallel", format!("{:?}", self.asked.parallel).to_lowercase()),
            ("model", self.model.clone()),
            ("--pin", listed(&settings.pins)),
            ("--codec", gradients),
            ("--activation-codecs", activations),
            ("--cluster", cluster.map_or("none".to_owned(), |found| checksum(&found.text))),
        ]
    }

    /// Returns the plan, which is the same on all ranks, and their group.
    ///
    /// # Errors
    /// If there is no plan for these machines, or a peer is lost.
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
        let (sequence, settings) = (self.sequence, self.settings.clone());
        codings::tell(&settings);
        let source = source::Source::open(&self.model)?.read_once(&self.model, sequence)?;
        let build =
            move |batch| source.graph(batch, sequence).map_err(|error| Error::from_model(&error));
        let mut planner = Planner::new(self.batch, settings, build);
        let found = match self.asked.parallel {
            Parallel::Data => planner.plan_for(cluster, &pure_data(cluster.size(), 1))?,
            _ => planner.plan(cluster)?,
        };
        let file = plan_file(&self.model, sequence, &planner, cluster, &found)?;
        say(format!(
            "planned: {} of {}, {}, ZeRO {}, {}, {:.1} ms a step",
            counted(file.stage.len(), "stage"),
            devices(&file.mesh),
            counted(file.micro_batches, "micro-batch"),
            file.zero,
            travels(&file, None),
            1e3 * file.step_s
        ));
        Ok(file)
    }
}

/// Returns a list of names as text.
fn listed(all: &[impl ToString]) -> String {
    match all {
        [] => "none".to_owned(),
        all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the codecs of gradients and activations.
pub fn travels(file: &PlanFile, codec: Option<&Policy>) -> String {
    let codec = codec.map(Policy::to_string);
    let gradients: BTreeSet<&str> = match &codec {
        Some(codec) => BTreeSet::from([&codec[..]]),
        None => file.codec.iter().map(|codec| &codec.name[..]).collect(),
    };
    let activations = file.activation.iter().map(|codec| &codec.name[..]);
    let activations: BTreeSet<&str> = activations.filter(|name| *name != "none").collect();
    let [gradients, activations] = [gradients, activations].map(|names| match names.is_empty() {
        true => "they are".to_owned(),
        false => names.into_iter().collect::<Vec<_>>().join(" and "),
    });
    format!("gradients as {gradients}, activations as {activations}")
}
