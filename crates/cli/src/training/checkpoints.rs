//! Freezing a training in all ranks, and going on from it, in as many ranks or in others.

use std::path::PathBuf;

use anyhow::Result;
use thinwire_sync::Error::Invalid;
use thinwire_sync::{State, Synchronizer};
use thinwire_train::checkpoint::{Checkpoint, Draft, Progress, Tensors};
use thinwire_train::{Gpt, Model, Sampler, Trainer};
use thinwire_wire::{Rank, World};

use super::plan::{Keep, Plan};
use crate::failure::hinted;

/// Writes the checkpoint of the next step; all ranks call this. Its path, on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    plan: &Plan,
    keep: &Keep,
    trainer: &Trainer<Gpt, Synchronizer>,
    sampler: &Sampler,
) -> Result<Option<PathBuf>> {
    let sync = trainer.exchange();
    let (world, step) = (sync.world(), trainer.next_step());
    let first = world.rank() == Rank(0);
    let draft = if first { Some(Draft::create(&keep.folder, step)?) } else { None };
    sync.barrier()?;
    let draft = draft.unwrap_or_else(|| Draft::open(&keep.folder, step));
    let state = sync.state();
    draft.write_exchange(world.rank(), &state.tensors)?;
    if first {
        let parameters = trainer.model().parameters();
        draft.write_model(parameters, trainer.values(), "a byte-level GPT by thinwire")?;
        draft.write_optimizer(parameters, trainer.optimizer())?;
    }
    sync.barrier()?;
    if !first {
        return Ok(None);
    }
    let progress = Progress {
        step,
        updates: trainer.optimizer().updates,
        position: sampler.position(),
        seed: plan.recipe.seed,
        world: world.size() as u32,
        data: plan.corpus.fingerprint().to_owned(),
        config: serde_json::json!({ "recipe": plan.recipe }),
        plan: state.plan,
    };
    Ok(Some(draft.commit(progress)?))
}

/// Takes up a checkpoint.
///
/// # Errors
/// If it is damaged or of another model.
pub fn load(
    checkpoint: &Checkpoint,
    trainer: &mut Trainer<Gpt, Synchronizer>,
    sampler: &mut Sampler,
) -> Result<()> {
    let progress = &checkpoint.manifest().progress;
    let parameters = trainer.model().parameters().to_vec();
    let (values, optimizer) = (checkpoint.values(&parameters)?, checkpoint.optimizer(&parameters)?);
    trainer.restore(progress.step, values, optimizer)?;
    sampler.seek(progress.position);
    let world = trainer.exchange().world();
    let tensors = exchange(checkpoint, world, progress.world)?;
    let state = State { tensors, plan: progress.plan.clone() };
    trainer.exchange_mut().load(&state).map_err(|error| match error {
        Invalid(_) => hinted(error, "give the same --bucket-bytes as before, or none as before"),
        error => error.into(),
    })
}

/// What this rank owes. In a smaller world a rank takes over what those owed who are no more, so
/// that the sum over ranks stays; in a larger one the new ranks owe nothing.
fn exchange(checkpoint: &Checkpoint, world: World, saved: u32) -> Result<Tensors> {
    let mut owed = Tensors::new();
    for rank in (world.rank().0..saved).step_by(world.size()) {
        for (name, (shape, values)) in checkpoint.exchange(Rank(rank))? {
            match owed.get_mut(&name) {
                Some((_, sum)) if name.starts_with("residual.") => add(sum, &values),
                Some(_) => {}
                None => {
                    owed.insert(name, (shape, values));
                }
            }
        }
    }
    // Warm starts of low-rank factors are the same on every rank.
    if world.rank().0 >= saved {
        let first = checkpoint.exchange(Rank(0))?;
        owed.extend(first.into_iter().filter(|(name, _)| !name.starts_with("residual.")));
    }
    Ok(owed)
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
