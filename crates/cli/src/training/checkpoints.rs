//! Freezing a training in all ranks, and going on from it, in as many ranks or in others.

use std::path::{Path, PathBuf};

use anyhow::Result;
use thinwire_sync::Error::Invalid;
use thinwire_sync::{State, reshard};
use thinwire_train::checkpoint::{Checkpoint, Progress};
use thinwire_train::{Parameter, Sampler, Trainer};
use thinwire_wire::Rank;

use super::exchange::Exchange;
use super::folder::FolderLock;
use super::job::{CheckpointPolicy, TEXT, TrainingJob};
use super::rank::warm_up_steps;
use super::shared;
use crate::failure::hinted;
use crate::output::say;

/// Key of the order of gradients in the manifest.
const ORDER: &str = "order";

/// Writes the checkpoint of the next step; all ranks call this. Returns the path on rank 0.
///
/// # Errors
/// If a file cannot be written, or a rank is lost.
pub fn save(
    job: &TrainingJob,
    kept: (&CheckpointPolicy, &FolderLock),
    trainer: &Trainer<'_>,
    sampler: &Sampler,
) -> Result<Option<PathBuf>> {
    let sync = trainer.exchange();
    let (world, step) = (sync.world(), trainer.next_step());
    let first = world.rank() == Rank(0);
    let gather = |mine: &[f32]| anyhow::Ok(sync.gather(mine)?);
    let draft = shared::begin(kept, (world, step), gather)?;
    let state = sync.state();
    let write = || -> Result<()> {
        draft.write_exchange(world.rank(), &state.tensors)?;
        if first {
            let parameters = trainer.model().parameters();
            let description =
                format!("a model of bytes by thinwire: {}", job.recipe.model.describe());
            draft.write_model(parameters, &trainer.values(), &description)?;
            draft.write_optimizer(parameters, &trainer.optimizer())?;
        }
        Ok(())
    };
    shared::all_done(write(), gather)?;
    if !first {
        return Ok(None);
    }
    // What is usual depends on the number of steps, which may be another one then.
    let warmup_steps = Some(warm_up_steps(job, &job.codec));
    let exchange = Exchange { warmup_steps, ..job.exchange.clone() };
    let progress = Progress {
        step,
        updates: trainer.optimizer().updates,
        position: sampler.position(),
        seed: job.recipe.seed,
        world: world.size() as u32,
        data: job.corpus.fingerprint().to_owned(),
        config: serde_json::json!({
            "recipe": job.recipe,
            "exchange": exchange,
            TEXT: job.settings.data.as_deref().and_then(Path::to_str),
            ORDER: order(trainer.model().parameters()),
        }),
        plan: state.plan,
    };
    Ok(Some(draft.commit(progress)?))
}

/// The order in which gradients leave, which buckets follow: another version may have another one.
fn order(parameters: &[Parameter]) -> String {
    let names: Vec<&str> = parameters.iter().map(|parameter| &parameter.name[..]).collect();
    format!("{:08x}", thinwire_wire::checksum(names.join(" ").as_bytes()))
}

/// Takes up a checkpoint. Where gradients leave in another order than they did, what is owed is taken
/// up, and the plan of buckets is not.
///
/// # Errors
/// If it is damaged or of another model.
pub fn load(
    checkpoint: &Checkpoint,
    trainer: &mut Trainer<'_>,
    sampler: &mut Sampler,
) -> Result<()> {
    let progress = &checkpoint.manifest().progress;
    let parameters = trainer.model().parameters().to_vec();
    let (values, optimizer) = (checkpoint.values(&parameters)?, checkpoint.optimizer(&parameters)?);
    trainer.restore(progress.step, &values, &optimizer)?;
    sampler.seek(progress.position);
    if checkpoint.is_sharded() {
        // Exchanges under a plan are others, so nothing of theirs is taken up.
        return Ok(());
    }
    let world = trainer.exchange().world();
    let read = |rank: usize| anyhow::Ok(checkpoint.exchange(Rank(rank as u32))?);
    let tensors = reshard(world, progress.world as usize, read)?;
    let state = State { tensors, plan: progress.plan.clone() };
    let alike = progress.config[ORDER] == order(&parameters);
    let exchange = trainer.exchange_mut();
    let loaded = if alike { exchange.load(&state) } else { exchange.load_tensors(&state) };
    if !alike && world.rank() == Rank(0) {
        say("the checkpoint's gradients were in other buckets: how they travel is chosen anew");
    }
    loaded.map_err(|error| match error {
        Invalid(ref detail) if detail.contains("--bucket-bytes") => {
            hinted(error, "give the same --bucket-bytes as before, or none as before")
        }
        Invalid(ref detail) if detail.contains("momentum correction") => {
            hinted(error, "give --momentum-correction FACTOR as before")
        }
        error => error.into(),
    })
}
