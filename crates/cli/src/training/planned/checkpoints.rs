//! Freezing a planned training, each rank its own parts, and going on from it under any plan.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use thinwire_train::Sampler;
use thinwire_train::checkpoint::{Checkpoint, Progress};
use thinwire_train::spmd::Machine;
use thinwire_wire::{Rank, World};

use super::Request;
use super::build::Built;
use crate::failure::hinted;
use crate::output::say;
use crate::training::folder::Held;
use crate::training::plan::{Keep, KeptModel, changes, kept_model, kept_recipe, planned_config};
use crate::training::shared;

/// Writes the checkpoint of the next step; all ranks call this. Its path, on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    (request, built): (&Request, &Built),
    kept: (&Keep, &Held),
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
    let (file, recipe) = (&built.file, &request.recipe);
    let progress = Progress {
        step,
        updates: machine.updates(),
        position: sampler.position(),
        seed: recipe.seed,
        world: world.size() as u32,
        data: request.corpus.fingerprint().to_owned(),
        config: planned_config(recipe, file.batch, &built.kept()?),
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
    (built, seed): (&Built, u64),
    (machine, sampler): (&mut Machine<'_>, &mut Sampler),
) -> Result<(u64, Option<String>)> {
    let progress = &checkpoint.manifest().progress;
    let kept = kept_model(checkpoint);
    let same = |kept: &KeptModel| {
        built.identity(kept.sequence).is_ok_and(|identity| identity == kept.identity)
    };
    let Some(kept) = kept.as_ref().filter(|kept| same(kept)) else {
        let found = kept.map_or("one that was trained without a plan".to_owned(), |kept| kept.name);
        let (path, model) = (checkpoint.path().display(), &built.file.model);
        let error = anyhow!("{path} is a checkpoint of {found}, the plan is for {model}");
        return Err(hinted(error, "give a plan for the same model"));
    };
    if machine.restore(checkpoint)? && machine.program().mesh.is_first() {
        say("the checkpoint is of another plan: what its codecs still owed is dropped");
    }
    sampler.seek(progress.position);
    let before = (kept_recipe(checkpoint)?.batch, kept.sequence, progress.seed);
    Ok((progress.step, changes(before, (built.file.batch, built.file.sequence, seed))))
}
