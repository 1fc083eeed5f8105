//! Freezing a planned training, each rank its own parts, and going on from it under any plan.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use thinwire_train::Sampler;
use thinwire_train::checkpoint::{Checkpoint, Draft, Progress};
use thinwire_train::spmd::Machine;
use thinwire_wire::{Rank, World};

use super::Request;
use crate::failure::hinted;
use crate::output::say;
use crate::training::plan::Keep;

/// Writes the checkpoint of the next step; all ranks call this. Its path, on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    (request, model): (&Request, &str),
    keep: &Keep,
    (machine, sampler): (&mut Machine<'_>, &Sampler),
    (world, step): (World, u64),
) -> Result<Option<PathBuf>> {
    let first = world.rank() == Rank(0);
    let draft = if first { Some(Draft::create(&keep.folder, step)?) } else { None };
    machine.gather(&[0.0])?;
    let draft = draft.unwrap_or_else(|| Draft::open(&keep.folder, step));
    draft.write_shard(world.rank(), &machine.shards())?;
    machine.gather(&[0.0])?;
    if !first {
        return Ok(None);
    }
    let progress = Progress {
        step,
        updates: machine.updates(),
        position: sampler.position(),
        seed: request.recipe.seed,
        world: world.size() as u32,
        data: request.corpus.fingerprint().to_owned(),
        config: serde_json::json!({ "recipe": request.recipe, "model": model }),
        plan: machine.owing_plan().unwrap_or_default().to_owned(),
    };
    Ok(Some(draft.commit_shards(progress)?))
}

/// Takes up a checkpoint; the next step.
///
/// # Errors
/// If it is damaged, or of another model.
pub fn load(
    checkpoint: &Checkpoint,
    model: &str,
    (machine, sampler): (&mut Machine<'_>, &mut Sampler),
) -> Result<u64> {
    let progress = &checkpoint.manifest().progress;
    let found = progress.config["model"].as_str().unwrap_or("one that was trained without a plan");
    if found != model {
        let path = checkpoint.path().display();
        let error = anyhow!("{path} is a checkpoint of {found}, the plan is for {model}");
        return Err(hinted(error, "give a plan for the same model"));
    }
    if machine.restore(checkpoint)? && machine.program().mesh.is_first() {
        say("the checkpoint is of another plan: what its codecs still owed is dropped");
    }
    sampler.seek(progress.position);
    Ok(progress.step)
}
