//! A rank's parts of parameters and of what the optimiser keeps, into a checkpoint and out of one.
//!
//! Residuals of codecs are kept too, by exchange. Exchanges of another plan are others, so there it
//! is dropped, which the caller is told: it is less than one step's gradient.

use std::collections::BTreeMap;

use thinwire_model::{Part, Placement};
use thinwire_program::{Owner, Parameter, Slot, parts_of};

use super::machine::Machine;
use super::slots::Content;
use super::value::Value;
use crate::checkpoint::{Checkpoint, Tensors, Wanted, part_name};
use crate::error::{Error, Kind};

/// Suffixes of a parameter's values, means and means of squares.
const SUFFIXES: [&str; 3] = ["", ".mean", ".square"];

/// Returns the name of an exchange's residual.
fn owed_name(number: u32) -> String {
    format!("owed.{number}")
}

impl Machine<'_> {
    /// Returns the parts that this rank saves: of parts that lie on several ranks, the first one's.
    pub fn shards(&self) -> Tensors {
        let mut tensors = Tensors::new();
        for (index, parameter) in self.program.parameters.iter().enumerate() {
            if !self.keeps(parameter) {
                continue;
            }
            let parts = self.parts(parameter, parameter.reduced);
            let start: Vec<usize> = parts.iter().map(|part| part.start).collect();
            let shape: Vec<usize> = parts.iter().map(|part| part.length).collect();
            let buffers = self.optimizer.buffers(index);
            for (suffix, values) in SUFFIXES.iter().zip(buffers) {
                let name = part_name(&format!("{}{suffix}", self.name(parameter)), &start);
                tensors.insert(name, (shape.clone(), values.to_vec()));
            }
        }
        for (number, owed) in self.slots.residuals().all() {
            tensors.insert(part_name(&owed_name(*number), &[0]), (vec![owed.len()], owed.clone()));
        }
        tensors
    }

    /// The plan's fingerprint, if its codecs may owe something.
    pub fn owing_plan(&self) -> Option<&str> {
        self.owing_plan.as_deref()
    }

    /// Updates that the optimiser has made.
    pub fn updates(&self) -> u64 {
        self.optimizer.updates()
    }

    /// Goes on from a checkpoint, of this plan or of another one; whether what codecs owed had to be
    /// dropped.
    ///
    /// # Errors
    /// If it is damaged, or of another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<bool, Error> {
        let mut wanted = Vec::new();
        for parameter in &self.program.parameters {
            let name = self.name(parameter);
            wanted.push(Wanted::new(name.to_owned(), self.parts(parameter, parameter.home)));
            if let Owner::Here { .. } = parameter.owner {
                let parts = self.parts(parameter, parameter.reduced);
                let one = |suffix| Wanted::new(format!("{name}{suffix}"), parts.clone());
                wanted.extend(SUFFIXES.map(one));
            }
        }
        checkpoint.fill(&mut wanted)?;
        let mut wanted = wanted.into_iter().map(|part| part.values);
        let mut next = || wanted.next().expect("as many as were wanted");
        for index in 0..self.program.parameters.len() {
            let parameter = &self.program.parameters[index];
            let home = parameter.home;
            let owned = matches!(parameter.owner, Owner::Here { .. });
            let value = Value::new(&self.program.slots[home].shape, next());
            self.slots.put_lasting(home, Content::Here(value));
            if owned {
                self.optimizer.set_buffers(index, [next(), next(), next()]);
            }
        }
        let progress = &checkpoint.manifest().progress;
        self.optimizer.set_updates(progress.updates);
        (self.step, self.first) = (progress.step, progress.step);
        let owing = Some(&progress.plan[..]).filter(|plan| !plan.is_empty());
        let known = owing.is_some() && owing == self.owing_plan();
        if known {
            self.restore_residuals(checkpoint)?;
        }
        Ok(owing.is_some() && !known)
    }

    fn restore_residuals(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let mut shard = checkpoint.shard(self.slots.rank())?;
        let mut all = BTreeMap::new();
        for (number, elements) in self.program.owed() {
            let name = part_name(&owed_name(number), &[0]);
            let Some((_, owed)) = shard.remove(&name) else { continue };
            if owed.len() != elements {
                let found = owed.len();
                let message = format!("{name} has {found} elements, expected {elements}");
                return Err(Error::new(Kind::Checkpoint, message));
            }
            all.insert(number, owed);
        }
        self.slots.residuals_mut().set(all);
        Ok(())
    }

    fn name(&self, parameter: &Parameter) -> &str {
        &self.training.graph.tensors[parameter.tensor].name
    }

    fn parts(&self, parameter: &Parameter, slot: Slot) -> Vec<Part> {
        let shape = &self.training.graph.tensors[parameter.tensor].shape;
        parts_of(shape, &self.program.slots[slot].layout, &self.program.mesh)
    }

    /// Whether this rank updates a parameter, and is the first of those that have the same part.
    fn keeps(&self, parameter: &Parameter) -> bool {
        let layout = &self.program.slots[parameter.reduced].layout;
        let places = layout.0.iter().zip(&self.program.mesh.coordinates);
        let first = places
            .into_iter()
            .all(|(placement, at)| *placement != Placement::Replicated || *at == 0);
        first && matches!(parameter.owner, Owner::Here { .. })
    }
}
