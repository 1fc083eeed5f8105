//! Trainings of graph neural networks, pass by pass.

use std::time::Instant;

use thinwire_checkpoint::{FolderLock, Policy, check_origin};
use thinwire_graph::Batches;
use thinwire_wire::Rank;

use super::checkpoints::{SaveKind, write};
use super::observer::{Event, Observer, Pass};
use crate::checkpoint::Checkpoint;
use crate::error::{During, Error, Kind};
use crate::gnn::{Totals, Trainer};

/// Training of a graph neural network in one process.
pub struct GraphSession<'a> {
    /// This rank before its first pass.
    pub trainer: &'a mut Trainer,
    /// Number of passes over the training vertices, including those before a checkpoint.
    pub passes: u64,
    /// Vertices on which accuracy is measured after each pass.
    pub validation: Option<&'a Batches>,
    /// Checkpoint from which the training continues.
    pub resume: Option<&'a Checkpoint>,
    /// Whether and where a checkpoint is written after each pass.
    pub policy: Option<&'a Policy>,
    /// The folder of checkpoints.
    pub lock: &'a FolderLock,
    /// Receiver of the events that a user sees.
    pub observer: &'a dyn Observer,
}

impl GraphSession<'_> {
    /// Trains all passes; every rank calls this.
    ///
    /// # Errors
    /// If a checkpoint is damaged, belongs to another training or cannot be written, a rank is lost, or the
    /// loss is not finite.
    pub fn run(&mut self) -> Result<(), Error> {
        self.restore()?;
        for number in self.trainer.position().pass + 1..=self.passes {
            let (begun, before) = (Instant::now(), self.trainer.totals());
            let trained = self.trainer.pass().during(|| format!("pass {number}"))?;
            if !trained.mean_loss().is_finite() {
                let message = format!(
                    "the loss is {} in pass {number}, expected a finite number",
                    trained.mean_loss()
                );
                let hint = "give a lower --lr, or features of a smaller scale";
                return Err(Error::new(Kind::Invalid, message).with_hint(hint));
            }
            let seconds = begun.elapsed().as_secs_f64();
            let Totals { sent_bytes, loading_s, wait_s } = self.trainer.totals() - before;
            let validated = self.validation.map(|it| self.trainer.evaluate(it)).transpose()?;
            let pass = Pass { number, trained, validated, seconds, loading_s, wait_s, sent_bytes };
            self.observer.on(Event::Pass(&pass))?;
            self.save()?;
        }
        Ok(())
    }

    /// Continues from the checkpoint, if there is one.
    fn restore(&mut self) -> Result<(), Error> {
        let sealed = self.resume.map(Checkpoint::sealed);
        check_origin(sealed, |mine| Ok(self.trainer.gather(mine)?))?;
        let Some(checkpoint) = self.resume else { return Ok(()) };
        let notice = self.trainer.restore(checkpoint)?;
        if self.trainer.world().rank() == Rank(0) {
            let (path, done) = (checkpoint.path().display(), self.trainer.position().pass);
            let line = format!("continuing from {path}, after {done} passes");
            let lines = [Some(line), notice].into_iter().flatten();
            lines.map(Event::Line).try_for_each(|line| self.observer.on(line))?;
        }
        Ok(())
    }

    /// Writes a checkpoint, if there is a folder. On a failure, the checkpoint is saved elsewhere and
    /// the training ends, unless passes are left and the folder is only temporarily unavailable.
    fn save(&mut self) -> Result<(), Error> {
        let Some(policy) = self.policy else { return Ok(()) };
        let (step, is_over) = (self.trainer.steps(), self.trainer.position().pass >= self.passes);
        let kind = if is_over { SaveKind::Last } else { SaveKind::Between };
        let saved = write(self.trainer, policy, self.lock, step, kind);
        saved.during(|| format!("saving step {step}")).map(drop)
    }
}
