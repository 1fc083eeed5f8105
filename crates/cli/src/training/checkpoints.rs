//! Checkpoints of trainings as the command resolves them: where they go, what one continues from, and what they keep.

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

/// Returns where checkpoints go, and how often.
pub fn policy(folder: PathBuf, every: Option<u64>) -> Policy {
    Policy { folder, every, say, go_on }
}

/// Opens the checkpoint to resume, once it and the place of others are there or `patience` is over.
///
/// # Errors
/// If the checkpoint is not there then.
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

/// Returns the settings that checkpoints of a training keep for the command: of a planned one, the model as the plan
/// names it and the plan, else the model with the recipe.
///
/// # Errors
/// If the model is impossible.
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
