//! Freezing a training in all ranks, and going on from it, in as many ranks or in others, under any
//! plan or none.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use thinwire_train::Position;
use thinwire_train::checkpoint::{Checkpoint, Draft, Progress};
use thinwire_wire::{Rank, World};

use super::engine::{Engine, ORDER, WHOLE};
use super::job::{TEXT, TrainingJob};
use super::model::Named;
use super::plan::{KeptPlan, PLANNED};
use super::rescue::Saved;
use crate::output::say;

/// Key in the manifest of the name of the elastic job that wrote it.
pub const JOB: &str = "job";

/// A replica or a part of a plan, as a checkpoint keeps it.
pub struct Replica<'r, 'a> {
    /// The training.
    pub job: &'r TrainingJob,
    /// Name of the elastic job, if it is one.
    pub name: Option<&'r str>,
    /// The rank at work.
    pub engine: &'r mut Engine<'a>,
    /// Where the batch of the next step begins.
    pub position: Position,
    /// The next step.
    pub step: u64,
}

impl Saved for Replica<'_, '_> {
    fn world(&self) -> World {
        self.engine.machine.world()
    }

    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>> {
        Ok(self.engine.machine.gather(mine)?)
    }

    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.engine.machine.settle()?;
        Ok(self.engine.machine.gather_bytes(mine)?)
    }

    fn write(&mut self, draft: &Draft) -> Result<String> {
        Ok(self.engine.write(draft, self.world().rank())?)
    }

    fn progress(&mut self, plan: String) -> Result<Progress> {
        Ok(Progress {
            step: self.step,
            updates: self.engine.machine.updates(),
            position: self.position,
            seed: self.job.recipe.seed,
            world: self.world().size() as u32,
            data: self.job.dataset.fingerprint().to_owned(),
            config: config((self.job, self.name), self.engine)?,
            plan,
        })
    }
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
    Ok(checkpoint.progress().position)
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
