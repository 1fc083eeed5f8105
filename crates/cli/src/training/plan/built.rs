//! A model with its gradients, and the work of each rank: a plan that cuts the model, or replicas of the
//! whole model. A checkpoint contains the plan, with which its training continues.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_model::{Graph, backward};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::PlanFile;
use thinwire_program::Plan;
use thinwire_train::Error;
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::Computation;
use thinwire_train::spmd::Modality;

use super::make::Asked;
use crate::failure::{OrHint, hinted};
use crate::source::Source;
use crate::training::model::{HINT, Model, Named, identity};
use crate::training::settings::Settings;

/// The manifest's key for the plan.
pub const PLANNED: &str = "planned";

/// Computation and model, which are equal on all ranks.
pub struct Built {
    /// The computation of the ranks.
    pub computation: Computation,
    /// The model, as saved in checkpoints.
    pub model: Model,
}

impl Built {
    /// Returns the model and the plan of a file. `tokens` is the name of the input for tokens, if the user
    /// gave one.
    ///
    /// # Errors
    /// If the plan does not fit the model.
    pub fn planned(file: PlanFile, tokens: Option<String>) -> Result<Built> {
        let rows = file.batch / file.micro_batches.max(1);
        let source = Source::open(&file.model)?;
        let graph = source.graph(rows, file.sequence);
        let graph = graph.or_hint("thinwire model show NAME describes a model")?;
        let plan = Plan::of_file(&file, &graph).or_hint("make the plan again for this model")?;
        let model = Named::of(&source, file.model.clone(), file.sequence, tokens)?;
        let mut built = Built::of(&graph, plan, Model::Named(model))?;
        let [_, found] = built.computation.modality.sizes();
        if found != file.sequence {
            let planned = file.sequence;
            let message =
                format!("the model reads sequences of {found} tokens, but the plan was made for");
            return Err(anyhow!("{message} {planned}"))
                .or_hint("set \"sequence\" in the model file, and make the plan again");
        }
        built.computation.file = Some(file);
        Ok(built)
    }

    /// Returns the whole model, for `rows` rows on a rank.
    ///
    /// # Errors
    /// If the model is not valid, reads neither text nor images, or has a different fixed number of rows.
    pub fn replica(model: &Model, rows: usize) -> Result<Built> {
        let (graph, micro_batches) = model.graph(rows)?;
        let orders = Schedule::OneForwardOneBackward.orders(1, micro_batches);
        let orders = orders.context("no order of micro-batches")?;
        let plan = Plan { micro_batches, orders, ..Plan::alone(&graph) };
        let mut built = Built::of(&graph, plan, model.clone())?;
        built.computation.unit = model.unit()?;
        Ok(built)
    }

    /// Returns the computation of [`Built::replica`].
    ///
    /// # Errors
    /// As for [`Built::replica`].
    pub fn computation(model: &Model, rows: usize) -> Result<Computation, Error> {
        Ok(Built::replica(model, rows).map_err(Error::caller)?.computation)
    }

    fn of(graph: &Graph, plan: Plan, model: Model) -> Result<Built> {
        let training = backward(graph)?;
        plan.check(&training)?;
        let modality = Modality::new(graph, model.tokens()).or_hint(HINT)?;
        let (context, description) = (model.context(), model.describe());
        let (file, unit, served) = (None, 1, Vec::new());
        let computation =
            Computation { file, training, plan, modality, context, description, unit, served };
        Ok(Built { computation, model })
    }

    /// Returns whether this is a plan for the model and the batch, and for the number of ranks if it is
    /// known.
    pub fn is_for(&self, model: &str, sequence: usize, batch: usize, ranks: Option<u32>) -> bool {
        let same = self.computation.file.as_ref().is_some_and(|file| {
            (&file.model[..], file.sequence, file.batch) == (model, sequence, batch)
        });
        same && ranks.is_none_or(|ranks| ranks as usize == self.computation.plan.ranks())
    }

    /// Refuses a checkpoint whose model is not the plan's model.
    ///
    /// # Errors
    /// If the models differ, or the checkpoint has no model that this version can read.
    pub fn check_resumes(&self, checkpoint: &Checkpoint) -> Result<()> {
        let kept = Model::kept(checkpoint)?;
        if self.is_of(&kept) {
            return Ok(());
        }
        let (path, model) = (checkpoint.path().display(), self.model.name());
        let message = format!("{path} is a checkpoint of {}", kept.name());
        Err(hinted(
            anyhow!("{message}, but the plan is for {model}"),
            "give a plan for the same model",
        ))
    }

    /// Returns whether this is the model of a checkpoint, for sequences of the same length.
    fn is_of(&self, kept: &Model) -> bool {
        let Ok(Named { context, identity: expected, .. }) = kept.to_named() else { return false };
        let found = Source::open(&self.model.planned_name());
        let found = found.and_then(|source| identity(&source, context));
        self.model.is(kept) || found.is_ok_and(|found| found == expected)
    }
}

/// A plan, and the request for it if it was made for the training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptPlan {
    /// The text of the plan's file.
    pub file: String,
    /// The request for the plan.
    pub asked: Option<Asked>,
}

impl KeptPlan {
    /// Returns the plan of a checkpoint, or `None` if the training had no plan or an older version wrote the
    /// checkpoint without one.
    ///
    /// # Errors
    /// If the checkpoint's plan cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<KeptPlan>> {
        let kept = checkpoint.progress().config[PLANNED].clone();
        serde_json::from_value(kept).with_context(|| {
            format!("{} has no plan that this version can read", checkpoint.path().display())
        })
    }

    /// Returns the plan for a training, and its path.
    ///
    /// # Errors
    /// If the plan cannot be read, or does not fit its model.
    pub fn built(
        &self,
        settings: &Settings,
        resumed: Option<&Checkpoint>,
    ) -> Result<(PathBuf, Built)> {
        let path = resumed.map(|checkpoint| checkpoint.path().to_owned()).unwrap_or_default();
        let told = settings.recipe.input.as_ref().map(|tokens| tokens.0.clone());
        let before = resumed.map(Model::kept).transpose()?;
        let tokens = told.or_else(|| before?.tokens().map(str::to_owned));
        let built = PlanFile::parse(&self.file)
            .map_err(Into::into)
            .and_then(|file| Built::planned(file, tokens))
            .with_context(|| format!("the plan of {}", path.display()))
            .or_hint("continue with --plan FILE or --parallel auto")?;
        Ok((path, built))
    }
}
