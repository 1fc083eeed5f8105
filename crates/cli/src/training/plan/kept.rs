//! The plan that a checkpoint keeps, by which its training goes on.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use thinwire_plan::report::PlanFile;
use thinwire_train::checkpoint::Checkpoint;

use super::built::Built;
use super::make::Asked;
use crate::failure::OrHint;
use crate::training::model::Model;
use crate::training::settings::Settings;

/// The manifest's key for the plan.
pub const PLANNED: &str = "planned";

/// A plan, and the request for it if it was made for the training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptPlan {
    /// The text of the plan's file.
    pub file: String,
    /// The request for the plan.
    pub asked: Option<Asked>,
}

impl KeptPlan {
    /// The plan of a checkpoint; none if the training had no plan, or if an older version wrote the
    /// checkpoint without one.
    ///
    /// # Errors
    /// If the checkpoint has a plan that cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<KeptPlan>> {
        let kept = checkpoint.progress().config[PLANNED].clone();
        serde_json::from_value(kept)
            .with_context(|| format!("{} has no plan of this version", checkpoint.path().display()))
    }

    /// The plan as a training takes it, and where it is.
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
            .or_hint("go on with --plan FILE or --parallel auto")?;
        Ok((path, built))
    }
}
