//! Checkpoints of a training, from which it continues with any number of ranks, and under any plan or without
//! one.

use std::path::PathBuf;

use serde_json::json;
use thinwire_checkpoint::{
    Draft, FolderLock, Manifest, Policy, Saved, all_done, save, save_between, save_last,
};
use thinwire_collective::{Group, all_gather, all_gather_bytes};
use thinwire_wire::{Rank, World};

use super::adaptation::{ELAPSED, TERMS, Terms};
use super::engine::{Engine, ORDER, WHOLE};
use super::rounds::MODE;
use super::steps::About;
use super::{Event, Session, Settings};
use crate::Position;
use crate::checkpoint::{Checkpoint, Progress, seal};
use crate::error::{Error, Kind};

/// Key, in the manifest, of the name of the elastic job that wrote the checkpoint.
pub const JOB: &str = "job";

/// A replica, or a part of a plan, with everything that a checkpoint contains.
pub(super) struct Replica<'r, 'a> {
    /// Settings of the training.
    pub settings: &'r Settings<'r>,
    /// Name of the job, if the job is elastic.
    pub name: Option<&'r str>,
    /// The rank at work.
    pub engine: &'r mut Engine<'a>,
    /// Position of the next step's batch.
    pub position: Position,
    /// Terms that policies have changed.
    pub terms: Terms,
    /// Seconds that the training has taken.
    pub elapsed_s: f64,
    /// The next step.
    pub step: u64,
}

impl Saved for Replica<'_, '_> {
    type Record = Progress;

    fn world(&self) -> World {
        self.engine.world()
    }

    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, thinwire_checkpoint::Error> {
        self.engine.settle()?;
        Ok(self.engine.gather(mine)?)
    }

    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, thinwire_checkpoint::Error> {
        self.engine.settle()?;
        Ok(self.engine.gather_bytes(mine)?)
    }

    fn write(&mut self, draft: &Draft) -> Result<String, thinwire_checkpoint::Error> {
        self.engine.write(draft, self.world().rank())
    }

    fn seal(
        &mut self,
        draft: &Draft,
        plan: String,
    ) -> Result<Manifest<Progress>, thinwire_checkpoint::Error> {
        let Settings { seed, dataset, config, .. } = self.settings;
        let mut config = config.clone();
        config[ORDER] = json!(self.engine.order());
        config[WHOLE] = json!(self.engine.executor.exchanges_whole());
        if let Some(mode) = self.engine.mode() {
            config[MODE] = json!(mode.to_string());
        }
        if self.terms != Terms::new(self.terms.first_batch) {
            config[TERMS] = json!(self.terms);
        }
        if !self.settings.policies.is_empty() {
            config[ELAPSED] = json!(self.elapsed_s);
        }
        self.name.iter().for_each(|name| config[JOB] = json!(name));
        let progress = Progress {
            step: self.step,
            updates: self.engine.executor.updates(),
            position: self.position,
            seed: *seed,
            world: self.world().size() as u32,
            data: dataset.fingerprint().to_owned(),
            config,
            plan,
        };
        seal(draft, progress)
    }
}

impl Session<'_> {
    /// Continues from a checkpoint, and reports differences to the user. Returns the place at which the
    /// training continues.
    ///
    /// # Errors
    /// If it is damaged or belongs to another model.
    pub(super) fn load(
        &self,
        checkpoint: &Checkpoint,
        engine: &mut Engine<'_>,
        world: World,
    ) -> Result<About, Error> {
        let notice = engine.restore(checkpoint, world)?;
        if world.rank() == Rank(0) {
            notice.map_or(Ok(()), |notice| self.say(notice))?;
            let (computation, ranks) = (engine.computation, world.size() as u32);
            self.observer.on(Event::Resumed { computation, ranks })?;
        }
        let Progress { step, position, config, .. } = checkpoint.progress();
        let kept = serde_json::from_value::<Option<Terms>>(config[TERMS].clone());
        let kept = kept.map_err(|error| {
            let path = checkpoint.path().display();
            let message =
                format!("{path} has policy settings that this version cannot read: {error}");
            Error::new(Kind::Checkpoint, message)
        })?;
        let is_alike =
            |terms: &Terms| terms.first_batch == self.settings.batch && !engine.is_planned();
        let terms = kept.filter(is_alike).unwrap_or(Terms::new(self.settings.batch));
        if let (Some(dropped), Rank(0)) = (kept.filter(|it| !is_alike(it)), world.rank()) {
            let (was, is) = (dropped.batch, terms.batch);
            self.say(format!(
                "in the checkpoint, a policy had changed the batch from {} to {was} rows; it is {is} again now",
                dropped.first_batch
            ))?;
        }
        let (steps, total) = (self.settings.steps, terms.total(self.settings.steps));
        if *step >= total {
            let message = format!(
                "the checkpoint has {step} steps, which have read as many rows as {steps} steps \
                 with the first batch"
            );
            return Err(Error::new(Kind::Invalid, message)
                .with_hint("give a larger --steps: it includes the steps before the checkpoint"));
        }
        Ok(About { first: *step, position: *position, terms })
    }
}

/// Locks the folder of checkpoints on rank 0; all ranks call this. If rank 0 fails, the call fails on all
/// ranks. `what` names the operation in the other ranks' errors.
///
/// # Errors
/// If another training has locked the folder, the folder cannot be read, or a rank is lost.
pub fn hold_in_all(
    policy: Option<&Policy>,
    resumed: Option<&Checkpoint>,
    group: &mut Group,
    what: &str,
) -> Result<FolderLock, Error> {
    let held = FolderLock::hold(policy, group.world().rank().0, resumed.map(Checkpoint::path));
    let gather = |row: &[f32]| Ok(all_gather(group, row).map_err(Error::from)?);
    Ok(all_done(held, what, gather)?)
}

/// Checks that all ranks see what rank 0 writes to the folder of checkpoints; all ranks call this.
///
/// # Errors
/// If some rank does not see it, or a rank is lost.
pub fn check_folder(policy: Option<&Policy>, group: &mut Group) -> Result<(), Error> {
    let Some(Policy { folder, .. }) = policy else { return Ok(()) };
    let rank = group.world().rank().0;
    let gather = |mine: Vec<u8>| Ok(all_gather_bytes(group, &mine).map_err(Error::from)?);
    Ok(thinwire_checkpoint::check_folder(folder, rank, gather)?)
}

/// Way in which a checkpoint is written, depending on its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveKind {
    /// After the last step: if the checkpoint cannot be written, it is saved elsewhere, and the training
    /// ends with an error.
    Last,
    /// Between steps of fixed ranks: a failure ends the training, unless the storage of checkpoints is
    /// only temporarily unavailable.
    Between,
    /// Between steps of an elastic job: if a checkpoint cannot be written, it is skipped, and the
    /// training continues.
    Elastic,
}

/// Writes a checkpoint; all ranks call this. Returns its path on rank 0, if it was written.
///
/// # Errors
/// If it cannot be written, or a rank is lost.
pub(super) fn write<S: Saved>(
    rank: &mut S,
    policy: &Policy,
    lock: &FolderLock,
    step: u64,
    kind: SaveKind,
) -> Result<Option<PathBuf>, thinwire_checkpoint::Error> {
    let attempt = |rank: &mut S| save(rank, policy, lock, step);
    match kind {
        SaveKind::Last => save_last(rank, policy, step, attempt),
        SaveKind::Between => save_between(rank, policy, step, attempt).map(Option::flatten),
        SaveKind::Elastic => save(rank, policy, lock, step),
    }
}
