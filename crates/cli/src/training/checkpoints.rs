//! Freezing a training in all ranks, and going on from it, in as many ranks or in others, under any
//! plan or none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use thinwire_checkpoint::{
    Draft, Error, FolderLock, Kind, Manifest, Policy, Saved, all_done, await_places, latest,
};
use thinwire_collective::{Group, all_gather, all_gather_bytes};
use thinwire_train::Position;
use thinwire_train::checkpoint::{self, Checkpoint, Progress, seal};
use thinwire_wire::{Rank, World};

use super::engine::{Engine, ORDER, WHOLE};
use super::job::{TEXT, TrainingJob};
use super::machine::go_on;
use super::model::Named;
use super::plan::{KeptPlan, PLANNED};
use crate::failure;
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
    type Record = Progress;

    fn world(&self) -> World {
        self.engine.machine.world()
    }

    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(self.engine.machine.gather(mine)?)
    }

    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.engine.machine.settle()?;
        Ok(self.engine.machine.gather_bytes(mine)?)
    }

    fn write(&mut self, draft: &Draft) -> Result<String, Error> {
        self.engine.write(draft, self.world().rank())
    }

    fn seal(&mut self, draft: &Draft, plan: String) -> Result<Manifest<Progress>, Error> {
        let config = config(self.job, self.name, self.engine).map_err(|error| {
            let (message, hint) = failure::lines(&error);
            let failed = Error::new(Kind::Failed, message);
            hint.into_iter().fold(failed, Error::with_hint)
        })?;
        let progress = Progress {
            step: self.step,
            updates: self.engine.machine.updates(),
            position: self.position,
            seed: self.job.recipe.seed,
            world: self.world().size() as u32,
            data: self.job.dataset.fingerprint().to_owned(),
            config,
            plan,
        };
        seal(draft, progress)
    }
}

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

/// Takes the folder of checkpoints on rank 0.
///
/// # Errors
/// If another training has it, or it cannot be read.
pub fn hold(
    policy: Option<&Policy>,
    rank: u32,
    resumed: Option<&Checkpoint>,
) -> Result<FolderLock, Error> {
    FolderLock::hold(policy, rank, resumed.map(Checkpoint::path))
}

/// Takes the folder of checkpoints on rank 0, or fails in all ranks, which call this. `what` names this for the others.
///
/// # Errors
/// If another training has it, it cannot be read, or a rank is lost.
pub fn hold_in_all(
    policy: Option<&Policy>,
    resumed: Option<&Checkpoint>,
    rank: u32,
    group: &mut Group,
    what: &str,
) -> Result<FolderLock> {
    let gather = |row: &[f32]| all_gather(group, row).map_err(of_group);
    Ok(all_done(hold(policy, rank, resumed), what, gather)?)
}

/// Makes sure that all ranks see what rank 0 writes to the folder of checkpoints; all ranks call this.
///
/// # Errors
/// If some rank does not, or a rank is lost.
pub fn check_folder(policy: Option<&Policy>, rank: u32, group: &mut Group) -> Result<()> {
    let Some(Policy { folder, .. }) = policy else { return Ok(()) };
    let gather = |mine: Vec<u8>| all_gather_bytes(group, &mine).map_err(of_group);
    Ok(thinwire_checkpoint::check_folder(folder, rank, gather)?)
}

fn of_group(error: thinwire_collective::Error) -> Error {
    thinwire_train::Error::exchange(error).into()
}

/// Returns a hint with the command that resumes an ended training, if there is a checkpoint.
pub fn resume_hint(policy: Option<&Policy>, resumed: Option<&Checkpoint>) -> Option<String> {
    let kept = policy.map(|policy| policy.folder.as_path());
    let kept = kept.filter(|folder| latest(folder).is_ok_and(|found| found.is_some()));
    kept.or(resumed.map(Checkpoint::path)).map(go_on)
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
fn config(job: &TrainingJob, name: Option<&str>, engine: &Engine<'_>) -> Result<Value> {
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
