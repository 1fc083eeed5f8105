//! A rank's parts of parameters and of the optimiser's state: writing them to a checkpoint, and reading them.
//!
//! Residuals of codecs are kept too. The synchroniser's residuals are stored by parameter. Residuals of
//! sums that a plan makes in every micro-batch are stored by the number of the exchange, so only the
//! same plan can load them.

use std::collections::BTreeMap;

use thinwire_model::{Part, Placement};
use thinwire_program::{Owner, Parameter, Slot, parts_of};
use thinwire_sync::State;

use super::executor::Executor;
use super::optimizer::Optimizer;
use super::slots::Content;
use super::snapshot::SUFFIXES;
use super::value::Value;
use crate::adam::Variance;
use crate::checkpoint::{Checkpoint, Tensors, Wanted, part_name};
use crate::error::{Error, Kind};

/// Returns the name of an exchange's residual.
fn owed_name(number: u32) -> String {
    format!("owed.{number}")
}

impl Executor<'_> {
    /// Returns the parts that this rank saves; if several ranks have a part, only the first of them saves it.
    pub fn shards(&self) -> Tensors {
        let mut tensors = Tensors::new();
        for (index, parameter) in self.program.parameters.iter().enumerate() {
            if !self.keeps(parameter) {
                continue;
            }
            let parts = self.parts(parameter, parameter.reduced);
            let start: Vec<usize> = parts.iter().map(|part| part.start).collect();
            let shape: Vec<usize> = parts.iter().map(|part| part.length).collect();
            let Optimizer { values, state, .. } = &self.optimizer;
            let buffers = [values, &state.means, &state.squares].map(|all| &all[index]);
            for (suffix, values) in SUFFIXES.iter().zip(buffers) {
                let name = part_name(&format!("{}{suffix}", self.name(parameter)), &start);
                tensors.insert(name, (shape.clone(), values.to_vec()));
            }
        }
        tensors
    }

    /// Returns the parts as [`Executor::shards`] does, but with `values`, in the order of the program,
    /// in place of the parameters' values.
    pub fn shards_of(&mut self, values: Vec<Vec<f32>>) -> Tensors {
        let own = std::mem::replace(&mut self.optimizer.values, values);
        let tensors = self.shards();
        self.optimizer.values = own;
        tensors
    }

    /// Replaces the parts that this rank saves.
    ///
    /// # Errors
    /// If one is missing or has another length.
    pub fn replace_shards(&mut self, tensors: &Tensors) -> Result<(), Error> {
        for index in 0..self.program.parameters.len() {
            let parameter = &self.program.parameters[index];
            let parts = self.parts(parameter, parameter.reduced);
            let start: Vec<usize> = parts.iter().map(|part| part.start).collect();
            let tensor = self.name(parameter).to_owned();
            for (suffix, values) in self.optimizer.buffers(index) {
                let name = part_name(&format!("{tensor}{suffix}"), &start);
                let found = tensors.get(&name).map_or(&[][..], |(_, values)| values);
                if found.len() != values.len() {
                    let (found, expected) = (found.len(), values.len());
                    let message = format!(
                        "the copy of this rank has {name} of {found} elements, expected {expected}"
                    );
                    return Err(Error::new(Kind::Checkpoint, message));
                }
                values.copy_from_slice(found);
            }
        }
        self.use_values();
        Ok(())
    }

    /// Returns the state that this rank's exchanges keep for the next step.
    pub fn exchange_state(&self) -> State {
        let mut state = self.sync().state();
        self.optimizer.state.variance.save(&mut state.tensors);
        state.tensors.extend(self.exchange_tensors());
        for (number, owed) in &self.slots.residuals.here {
            state.tensors.insert(owed_name(*number), (vec![owed.len()], owed.clone()));
        }
        state
    }

    /// Restores the residuals of sums that a plan makes in every micro-batch, and the progress of 1-bit
    /// Adam. Residuals must be from a training with the same plan.
    ///
    /// # Errors
    /// If a residual has another length than its exchange.
    pub fn restore_residuals(&mut self, tensors: &Tensors) -> Result<(), Error> {
        self.optimizer.state.variance = Variance::load(tensors);
        self.load_exchange(tensors)?;
        let mut all = BTreeMap::new();
        for (number, elements) in self.program.owed() {
            let name = owed_name(number);
            let Some((_, owed)) = tensors.get(&name) else { continue };
            if owed.len() != elements {
                let found = owed.len();
                let message = format!("{name} has {found} elements, expected {elements}");
                return Err(Error::new(Kind::Checkpoint, message));
            }
            all.insert(number, owed.clone());
        }
        self.slots.residuals.here = all;
        Ok(())
    }

    /// Returns the number of updates that the optimiser has made.
    pub fn updates(&self) -> u64 {
        self.optimizer.state.updates
    }

    /// Sets the number of updates that the optimiser has made.
    pub fn set_updates(&mut self, updates: u64) {
        self.optimizer.state.updates = updates;
    }

    /// Loads parameters and the optimiser's state from a checkpoint, of this plan or another one.
    ///
    /// # Errors
    /// If it is damaged, or belongs to another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
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
                let Optimizer { values, state, .. } = &mut self.optimizer;
                for all in [values, &mut state.means, &mut state.squares] {
                    all[index] = next();
                }
            }
        }
        let progress = checkpoint.progress();
        self.optimizer.state.updates = progress.updates;
        (self.step, self.first) = (progress.step, progress.step);
        Ok(())
    }

    fn name(&self, parameter: &Parameter) -> &str {
        &self.training.graph.tensors[parameter.tensor].name
    }

    fn parts(&self, parameter: &Parameter, slot: Slot) -> Vec<Part> {
        let shape = &self.training.graph.tensors[parameter.tensor].shape;
        parts_of(shape, &self.program.slots[slot].layout, &self.program.mesh)
    }

    /// Returns whether this rank updates a parameter, and is the first of the ranks that have the same part.
    fn keeps(&self, parameter: &Parameter) -> bool {
        let layout = &self.program.slots[parameter.reduced].layout;
        let places = layout.0.iter().zip(&self.program.mesh.coordinates);
        let first = places
            .into_iter()
            .all(|(placement, at)| *placement != Placement::Replicated || *at == 0);
        first && matches!(parameter.owner, Owner::Here { .. })
    }
}
