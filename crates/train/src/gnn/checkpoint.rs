//! Writing a rank's training to a checkpoint, and continuing from one.
//!
//! Law: a training that continues from a checkpoint equals one that was not interrupted, bit for bit.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thinwire_checkpoint::{self as checkpoint, Manifest, Saved};
use thinwire_graph::Position;
use thinwire_model::Part;
use thinwire_sync::State;
use thinwire_wire::{Rank, World};

use super::table::Table;
use super::task::Rows;
use super::trainer::{Trainer, load};
use crate::checkpoint::{
    Checkpoint, Draft, Progress, Tensors, Wanted, seal, write_exchange, write_whole,
};
use crate::error::{Error, Kind};

/// Key of the settings in a manifest.
const SETTINGS: &str = "graph";
/// Key of the codec of gradients, which may change when a training continues.
const CODEC: &str = "codec";
/// Suffixes of the names of Adam's state for a parameter.
const OF_ADAM: [&str; 2] = [".mean", ".square"];

impl Saved for Trainer {
    type Record = Progress;

    fn world(&self) -> World {
        self.sync.world()
    }

    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, checkpoint::Error> {
        Ok(Trainer::gather(self, mine)?)
    }

    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, checkpoint::Error> {
        Ok(self.sync.gather_bytes(mine).map_err(Error::from)?)
    }

    /// Writes this rank's part of a checkpoint: the state of its exchange, and on rank 0 also the values,
    /// trained rows and the state of Adam. All ranks call this between passes. Returns the plan of the
    /// exchange.
    fn write(&mut self, draft: &Draft) -> Result<String, checkpoint::Error> {
        if let Rows::Served { .. } = self.task.rows {
            let message = "checkpoints do not contain the rows that are on servers";
            return Err(checkpoint::Error::new(checkpoint::Kind::Invalid, message));
        }
        let (rank, state) = (self.world().rank(), self.sync.state());
        write_exchange(draft, rank, &state.tensors)?;
        if rank == Rank(0) {
            write_whole(draft, &self.tensors(), "a graph neural network by thinwire")?;
        }
        Ok(state.plan)
    }

    fn seal(
        &mut self,
        draft: &Draft,
        plan: String,
    ) -> Result<Manifest<Progress>, checkpoint::Error> {
        let Position { pass, step } = self.position;
        let position = crate::Position { pass, index: u64::from(step) };
        let settings: BTreeMap<String, String> = self.facts.iter().cloned().collect();
        let progress = Progress {
            step: self.step,
            updates: self.adam.updates,
            position,
            seed: self.settings.seed,
            world: self.world().size() as u32,
            data: settings.get("the graph").cloned().unwrap_or_default(),
            config: json!({ SETTINGS: settings, CODEC: self.codec }),
            plan,
        };
        seal(draft, progress)
    }
}

impl Trainer {
    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.sync.world()
    }

    /// Returns the values of all ranks, in the order of ranks. Every rank has the same number of values.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.sync.gather(mine).map_err(Error::exchange)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the position of the next batch.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Continues from a checkpoint. All ranks call this before their first step. Returns a notice if the
    /// codec has changed.
    ///
    /// # Errors
    /// If it is damaged, or belongs to another training: another graph, network, number of ranks, or other
    /// settings.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Option<String>, Error> {
        self.check(checkpoint)?;
        let mut wanted = self.wanted();
        checkpoint.fill(&mut wanted)?;
        let rows = wanted.split_off(3 * self.network.parameters().len());
        if let Some(table) = &mut self.table {
            table.restore(rows);
        }
        let mut found = wanted.into_iter().map(|part| part.values);
        for index in 0..self.values.len() {
            for all in [&mut self.values, &mut self.adam.means, &mut self.adam.squares] {
                all[index] = found.next().expect("three tensors for each parameter");
            }
        }
        let progress = checkpoint.progress();
        let tensors = checkpoint.exchange(self.world().rank())?;
        let state = State { tensors, plan: progress.plan.clone() };
        let loaded = match state.check(self.sync.options()) {
            Ok(()) => self.sync.load(&state),
            // A codec that was asked for takes up what another one owes.
            Err(_) => self.sync.load_tensors(&state),
        };
        loaded?;
        let step = u32::try_from(progress.position.index).unwrap_or(u32::MAX);
        self.position = Position { pass: progress.position.pass, step };
        (self.step, self.adam.updates) = (progress.step, progress.updates);
        let (rank, batches) = (self.world().rank().0, self.batches.clone());
        self.loader = load(&self.task, &self.settings, batches, rank, self.position)?;
        let before = progress.config.get(CODEC).and_then(Value::as_str);
        let before = before.filter(|before| *before != self.codec);
        Ok(before.map(|before| format!("codec {before} until here, {} from here on", self.codec)))
    }

    /// Refuses a checkpoint of another training.
    fn check(&self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let progress = checkpoint.progress();
        let path = checkpoint.path().display();
        let refused = |what: String| Err(Error::new(Kind::Checkpoint, format!("{path} {what}")));
        let Some(kept) = progress.config.get(SETTINGS).and_then(Value::as_object) else {
            return refused("is of a training without a graph".to_owned());
        };
        let (found, ranks) = (progress.world, self.world().size());
        if found as usize != ranks {
            return refused(format!("is of {found} ranks, this training has {ranks}"));
        }
        for (name, value) in &self.facts {
            let found = kept.get(name).and_then(Value::as_str).unwrap_or("none");
            if found != value {
                return refused(format!("is of another training: {name} is {found}, here {value}"));
            }
        }
        Ok(())
    }

    /// Returns values, trained rows and the state of Adam, by name.
    fn tensors(&self) -> Tensors {
        let mut tensors = self.table.as_ref().map(Table::tensors).unwrap_or_default();
        for (index, parameter) in self.network.parameters().iter().enumerate() {
            let all = [&self.values, &self.adam.means, &self.adam.squares];
            for (ending, all) in std::iter::once("").chain(OF_ADAM).zip(all) {
                let name = format!("{}{ending}", parameter.name);
                tensors.insert(name, (parameter.shape.clone(), all[index].clone()));
            }
        }
        tensors
    }

    /// Returns the tensors of [`Trainer::tensors`] as parts to find in a checkpoint; trained rows come last.
    fn wanted(&self) -> Vec<Wanted> {
        let parameters = self.network.parameters().iter();
        let of = parameters.flat_map(|parameter| {
            let whole = |length: &usize| Part { start: 0, length: *length };
            let parts: Vec<Part> = parameter.shape.iter().map(whole).collect();
            let endings = std::iter::once("").chain(OF_ADAM);
            endings.map(move |end| Wanted::new(format!("{}{end}", parameter.name), parts.clone()))
        });
        of.chain(self.table.iter().flat_map(Table::wanted)).collect()
    }
}
