//! Evaluation: forward alone, which teaches nothing.
//!
//! Nothing is dropped out, no bytes and no waiting are counted, and nothing of it is left in any slot.

use thinwire_program::pipeline::{Kind, Pass};

use super::{Executor, known_loss};
use crate::error::Error;
use crate::spmd::inputs::Inputs;

impl Executor<'_> {
    /// The mean loss of some micro-batches; all ranks call this.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn evaluate(&mut self, data: &[Inputs]) -> Result<f64, Error> {
        self.loss = None;
        self.slots.flush()?;
        let waited_s = self.slots.waited_s.get();
        self.slots.exchanges.counts = false;
        self.evaluating = true;
        let done = self.forward(data);
        self.evaluating = false;
        self.evaluations += data.len() as u64;
        self.slots.exchanges.counts = true;
        self.slots.waited_s.set(waited_s);
        done?;
        let told = self.told_loss();
        let all = self.slots.gather(&told)?;
        let losses = all.as_chunks().0.iter().map(|told| known_loss(*told));
        Ok(self.mean_loss(&losses.collect::<Vec<_>>(), data.len()))
    }

    fn forward(&mut self, data: &[Inputs]) -> Result<(), Error> {
        let chunks = self.program.forward.iter().enumerate();
        let mine = chunks.filter(|(_, list)| !list.is_empty()).map(|(chunk, _)| chunk);
        let mine: Vec<usize> = mine.collect();
        for (micro_batch, inputs) in data.iter().enumerate() {
            for chunk in &mine {
                self.pass(Pass { kind: Kind::Forward, chunk: *chunk, micro_batch }, inputs)?;
            }
            self.slots.clear();
        }
        self.slots.flush()
    }
}
