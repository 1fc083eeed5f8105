//! Freezing a training in all ranks, and going on from it, in as many ranks or in others, under any
//! plan or none.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use thinwire_train::Position;
use thinwire_train::checkpoint::{Checkpoint, Progress};
use thinwire_wire::{Rank, World};

use super::engine::{Engine, ORDER, WHOLE};
use super::folder::FolderLock;
use super::job::{TEXT, TrainingJob};
use super::model::Named;
use super::plan::{KeptPlan, PLANNED};
use super::settings::CheckpointPolicy;
use super::shared;
use crate::output::say;

/// Key in the manifest of the name of the elastic job that wrote it.
pub const JOB: &str = "job";

/// Writes the checkpoint of the next step; all ranks call this. Returns the path on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    (job, name): (&TrainingJob, Option<&str>),
    kept: (&CheckpointPolicy, &FolderLock),
    (engine, position): (&mut Engine<'_>, Position),
    (world, step): (World, u64),
) -> Result<Option<PathBuf>> {
    let draft = shared::begin(kept, (world, step), |mine| Ok(engine.machine.gather(mine)?))?;
    let written = engine.write(&draft, world.rank());
    let plan = shared::all_done(written, shared::PART, |mine| Ok(engine.machine.gather(mine)?))?;
    if world.rank() != Rank(0) {
        return Ok(None);
    }
    // Writing takes long, and others may have gone on meanwhile.
    kept.1.check()?;
    let progress = Progress {
        step,
        updates: engine.machine.updates(),
        position,
        seed: job.recipe.seed,
        world: world.size() as u32,
        data: job.dataset.fingerprint().to_owned(),
        config: config((job, name), engine)?,
        plan,
    };
    Ok(Some(draft.commit(progress)?))
}

/// Takes up a checkpoint, and says what is not as it was. Returns where the next batch begins.
///
/// # Errors
/// If it is damaged or of another model.
pub fn load(
    job: &TrainingJob,
    checkpoint: &Checkpoint,
    engine: &mut Engine<'_>,
    world: World,
) -> Result<Position> {
    let notice = engine.restore(checkpoint, world)?;
    if world.rank() == Rank(0) {
        notice.into_iter().for_each(say);
        job.said_of_resuming(engine.built, world.size() as u32)?.into_iter().for_each(say);
    }
    Ok(checkpoint.manifest().progress.position)
}

/// Settings of the training that a checkpoint keeps: of a planned one, the model as the plan names it
/// and the plan, else the model with the recipe.
fn config((job, name): (&TrainingJob, Option<&str>), engine: &Engine<'_>) -> Result<Value> {
    // What is usual depends on the number of steps, which may be another one then.
    let mut config = json!({
        "recipe": job.recipe,
        "exchange": job.exchange.resolved(job.codec.as_ref(), job.recipe.steps),
        TEXT: job.settings.data.as_deref().and_then(Path::to_str),
        ORDER: engine.order(),
        WHOLE: engine.machine.exchanges_whole(),
    });
    name.iter().for_each(|name| config[JOB] = json!(name));
    let Some(file) = &engine.built.file else {
        config["recipe"]["model"] = json!(engine.built.model);
        return Ok(config);
    };
    let Named { name, context, tokens, identity } = engine.built.model.to_named()?;
    config["model"] = json!(name);
    config["sequence"] = json!(context);
    config["identity"] = json!(identity);
    tokens.iter().for_each(|tokens| config["tokens"] = json!(tokens));
    let asked = job.parallelism.asked().cloned();
    config[PLANNED] = json!(KeptPlan { file: file.text(), asked });
    Ok(config)
}
