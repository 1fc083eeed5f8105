//! Checkpoints of trainings: their folder and interval, the checkpoint to resume from, and the settings they
//! contain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use thinwire_checkpoint::{Policy, await_places, latest};
use thinwire_plan::report::PlanFile;
use thinwire_train::checkpoint::{self, Checkpoint};

use super::job::{TEXT, TrainingJob};
use super::machine::go_on;
use super::model::{Model, Named};
use super::plan::{KeptPlan, PLANNED};
use crate::output::say;

/// Returns the folder of checkpoints and their interval.
pub fn policy(folder: PathBuf, every: Option<u64>) -> Policy {
    Policy { folder, every, say, go_on }
}

/// Opens the checkpoint to resume from. Waits for it and for the folder of new checkpoints, for `patience` at
/// most.
///
/// # Errors
/// If the checkpoint is still missing.
pub fn resolve(
    resume: Option<&Path>,
    folder: Option<&Path>,
    patience: Duration,
) -> Result<Option<Checkpoint>> {
    let open = || resume.map(checkpoint::resolve).transpose();
    Ok(await_places(open, folder, patience, say)?)
}

/// Returns a hint with the command that resumes an ended training, if there is a checkpoint.
pub fn resume_hint(policy: Option<&Policy>, resumed: Option<&Checkpoint>) -> Option<String> {
    let kept = policy.map(|policy| policy.folder.as_path());
    let kept = kept.filter(|folder| latest(folder).is_ok_and(|found| found.is_some()));
    kept.or(resumed.map(Checkpoint::path)).map(go_on)
}

/// Returns the command's settings for the checkpoints of a training: the plan, with the model under the
/// plan's name for it, or else the model with the recipe.
///
/// # Errors
/// If the model is not valid.
pub fn config(job: &TrainingJob, model: &Model, file: Option<&PlanFile>) -> Result<Value> {
    // What is usual depends on the number of steps, which may be another one then.
    let mut config = json!({
        "recipe": job.recipe,
        "exchange": job.exchange.resolved(job.codec.as_ref(), job.recipe.steps),
        TEXT: job.settings.data.as_deref().and_then(Path::to_str),
    });
    let Some(file) = file else {
        config["recipe"]["model"] = json!(model);
        return Ok(config);
    };
    let Named { name, context, tokens, identity } = model.to_named()?;
    config["model"] = json!(name);
    config["sequence"] = json!(context);
    config["identity"] = json!(identity);
    tokens.iter().for_each(|tokens| config["tokens"] = json!(tokens));
    let asked = job.parallelism.asked().cloned();
    config[PLANNED] = json!(KeptPlan { file: file.text(), asked });
    Ok(config)
}
