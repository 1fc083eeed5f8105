//! Freezing a planned training, each rank its own parts, and going on from it under any plan.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use thinwire_train::Sampler;
use thinwire_train::checkpoint::{Checkpoint, Progress};
use thinwire_train::spmd::Machine;
use thinwire_wire::{Rank, World};

use super::Request;
use super::build::Built;
use super::kept::{KeptPlan, PLANNED};
use super::request::checksum;
use crate::failure::hinted;
use crate::output::say;
use crate::training::exchange::differences;
use crate::training::folder::FolderLock;
use crate::training::job::{CheckpointPolicy, Recipe, TEXT, kept_recipe, model_of};
use crate::training::shared;

/// Writes the checkpoint of the next step; all ranks call this. Returns the path on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    (request, built): (&Request, &Built),
    kept: (&CheckpointPolicy, &FolderLock),
    (machine, sampler): (&mut Machine<'_>, &Sampler),
    (world, step): (World, u64),
) -> Result<Option<PathBuf>> {
    let first = world.rank() == Rank(0);
    let draft = shared::begin(kept, (world, step), |mine| Ok(machine.gather(mine)?))?;
    let written = draft.write_shard(world.rank(), &machine.shards());
    shared::all_done(written.map_err(Into::into), |mine| Ok(machine.gather(mine)?))?;
    if !first {
        return Ok(None);
    }
    let recipe = &request.recipe;
    let progress = Progress {
        step,
        updates: machine.updates(),
        position: sampler.position(),
        seed: recipe.seed,
        world: world.size() as u32,
        data: request.corpus.fingerprint().to_owned(),
        config: config(request, built)?,
        plan: machine.owing_plan().unwrap_or_default().to_owned(),
    };
    Ok(Some(draft.commit_shards(progress)?))
}

/// Takes up a checkpoint; the next step, and what differs from before.
///
/// # Errors
/// If it is damaged, or of another model.
pub fn load(
    checkpoint: &Checkpoint,
    (built, (recipe, ranks)): (&Built, (&Recipe, usize)),
    (machine, sampler): (&mut Machine<'_>, &mut Sampler),
) -> Result<(u64, Option<String>)> {
    let progress = &checkpoint.manifest().progress;
    let kept = model_of(checkpoint)?;
    if !built.identity(kept.sequence).is_ok_and(|identity| identity == kept.identity) {
        let (path, model) = (checkpoint.path().display(), &built.file.model);
        let error = anyhow!("{path} is a checkpoint of {}, the plan is for {model}", kept.name);
        return Err(hinted(error, "give a plan for the same model"));
    }
    let owed = machine.restore(checkpoint)? || !checkpoint.is_sharded();
    if owed && machine.program().mesh.is_first() {
        let other = if checkpoint.is_sharded() { "of another plan" } else { "of no plan" };
        say(format!("the checkpoint is {other}: what its codecs still owed is dropped"));
    }
    sampler.seek(progress.position);
    let (recipe, before) = (of_plan(recipe, built), kept_recipe(checkpoint)?);
    let told = |recipe: &Recipe, sequence: usize, ranks: usize| {
        let place = [("sequence", sequence.to_string()), ("ranks", ranks.to_string())];
        recipe.told().into_iter().chain(place)
    };
    let before = told(&before, kept.sequence, progress.world as usize);
    let mut now: Vec<_> = told(&recipe, built.file.sequence, ranks).collect();
    let mut before: Vec<_> = before.collect();
    if let Some(kept) = KeptPlan::of(checkpoint)? {
        before.push(("plan", checksum(&kept.file)));
        now.push(("plan", checksum(&built.file.text())));
    }
    Ok((progress.step, differences(before, now)))
}

/// The recipe with the batch that the plan has.
fn of_plan(recipe: &Recipe, built: &Built) -> Recipe {
    Recipe { batch: built.file.batch, ..recipe.clone() }
}

/// The kept settings of the training: model and batch are the plan's.
fn config(request: &Request, built: &Built) -> Result<serde_json::Value> {
    let mut recipe = serde_json::json!(of_plan(&request.recipe, built));
    recipe.as_object_mut().and_then(|fields| fields.remove("model"));
    let mut config = serde_json::json!(built.kept()?);
    config["recipe"] = recipe;
    config[TEXT] = serde_json::json!(request.settings.data.as_deref().and_then(Path::to_str));
    let planned = KeptPlan { file: built.file.text(), asked: request.asked().cloned() };
    config[PLANNED] = serde_json::json!(planned);
    Ok(config)
}
