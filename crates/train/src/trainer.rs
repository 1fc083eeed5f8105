//! Trainer of a model that every rank has as a whole, without a plan.
//!
//! Batch, backward with gradients leaving as they become ready, the exchange's end, clipping of the
//! averaged gradient, AdamW: the executor runs the plan of one rank, and its gradients are averaged
//! with those of the other ranks. Law: parameters stay bit-identical on all ranks without ever being
//! compared, because every rank does the same arithmetic on the same averages.

use std::time::Instant;

use thinwire_collective::Group;
use thinwire_sync::Synchronizer;

use crate::error::{Error, Kind};
use crate::optimizer::{AdamW, AdamWOptions, LearningRate, Pace};
use crate::spmd::{Codecs, ExchangeOptions, GraphModel, Machine, initial};
use crate::{Batch, Gradients, Parameter};

/// Settings of a [`Trainer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Micro-batches of a step: a batch has so many times as many rows as the model.
    pub micro_batches: usize,
    /// Settings of AdamW.
    pub adamw: AdamWOptions,
    /// Learning rate.
    pub learning_rate: LearningRate,
    /// Greatest norm of the averaged gradient.
    pub gradient_norm_max: Option<f32>,
    /// Precision that gradients are rounded to before they leave.
    pub gradients: Gradients,
}

impl Default for Options {
    fn default() -> Options {
        let learning_rate = LearningRate { peak: 1e-3, floor: 1e-4, warmup_steps: 20, steps: 1000 };
        Options {
            micro_batches: 1,
            adamw: AdamWOptions::default(),
            learning_rate,
            gradient_norm_max: Some(1.0),
            gradients: Gradients::F32,
        }
    }
}

/// Report of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Number of the step, from 0.
    pub step: u64,
    /// Mean loss over the rows of all ranks.
    pub loss: f32,
    /// Norm of the averaged gradient before clipping; NaN in a skipped step.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Seconds of forward and backward, without handing over.
    pub compute_s: f64,
    /// Seconds of handing gradients over, between pieces of backward.
    pub handover_s: f64,
    /// Seconds of waiting for the exchange after backward: the part that overlap did not hide.
    pub exposed_wait_s: f64,
    /// Seconds of clipping and AdamW.
    pub optimizer_s: f64,
    /// Some rank's gradient was not finite, and nothing was changed.
    pub skipped: bool,
}

/// Model in training on one rank.
#[derive(Debug)]
pub struct Trainer<'a> {
    model: &'a GraphModel,
    machine: Machine<'a>,
    options: Options,
}

impl<'a> Trainer<'a> {
    /// Starts at step 0, with parameters initialised by `seed`, the same on every rank of the group.
    /// Gradients travel by the options of `sync`.
    ///
    /// # Errors
    /// If ranks disagree, or the model cannot be planned for one rank.
    pub fn new(
        model: &'a GraphModel,
        group: Group,
        sync: thinwire_sync::Options,
        options: Options,
        seed: u64,
    ) -> Result<Trainer<'a>, Error> {
        let training = model.training();
        let start = initial(&training.graph, seed);
        let gradients = options.gradients;
        let exchange = ExchangeOptions { sync, codecs: Codecs::OfPolicy, gradients };
        let plan = model.plan(options.micro_batches);
        let machine = Machine::new(training, &plan, group, &start, exchange)?
            .with_gradient_norm_max(options.gradient_norm_max);
        Ok(Trainer { model, machine, options })
    }

    /// Goes on from a checkpoint; `values` and `optimizer` are in the model's order.
    ///
    /// # Errors
    /// If the buffers are not as long as the model's parameters.
    pub fn restore(
        &mut self,
        step: u64,
        values: &[Vec<f32>],
        optimizer: &AdamW,
    ) -> Result<(), Error> {
        let expected: Vec<usize> =
            self.model.parameters().iter().map(Parameter::elements).collect();
        for buffers in [values, &optimizer.means, &optimizer.squares] {
            let found: Vec<usize> = buffers.iter().map(Vec::len).collect();
            if found != expected {
                let context = format!(
                    "checkpoint with {} parameters of {} elements, expected {} of {}",
                    found.len(),
                    found.iter().sum::<usize>(),
                    expected.len(),
                    expected.iter().sum::<usize>()
                );
                return Err(Error::new(Kind::Checkpoint, context));
            }
        }
        for (index, place) in self.model.places().iter().enumerate() {
            let buffers = [values, &optimizer.means, &optimizer.squares];
            self.machine.put(index, buffers.map(|buffers| buffers[*place].clone()));
        }
        self.machine.seek(step, optimizer.updates);
        Ok(())
    }

    /// Takes one step on this rank's share of the batch.
    ///
    /// # Errors
    /// If the exchange fails. Parameters are then as before the step.
    ///
    /// # Panics
    /// If the batch has other rows than the model's micro-batches.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport, Error> {
        let step = self.machine.next_step();
        let learning_rate = self.options.learning_rate.at(step);
        let inputs = self.model.micro_batches(batch);
        let started = Instant::now();
        let pace = Pace { learning_rate, gradient_scale: 1.0 };
        self.machine.step(&inputs, pace, &self.options.adamw)?;
        let step_s = started.elapsed().as_secs_f64();
        let [handover_s, exposed_wait_s] = self.machine.exchange_s();
        let optimizer_s = self.machine.optimizer_s();
        let gradient_norm = self.machine.gradient_norm();
        Ok(StepReport {
            step,
            loss: self.machine.agreed().loss as f32,
            gradient_norm,
            learning_rate,
            compute_s: step_s - handover_s - exposed_wait_s - optimizer_s,
            handover_s,
            exposed_wait_s,
            optimizer_s,
            skipped: gradient_norm.is_nan(),
        })
    }

    /// Computes loss and gradients of a batch and drops them: the time of a step without exchange.
    ///
    /// # Errors
    /// If the computation fails.
    pub fn compute(&mut self, batch: &Batch) -> Result<(), Error> {
        self.machine.compute_gradients(&self.model.micro_batches(batch))
    }

    /// Returns the mean loss over `batches`, without training; NaN if there are none.
    ///
    /// # Errors
    /// If the computation fails.
    pub fn loss(&mut self, batches: &[Batch]) -> Result<f64, Error> {
        let mut sum = 0.0;
        for batch in batches {
            sum += self.machine.evaluate(&self.model.micro_batches(batch))?;
        }
        Ok(sum / batches.len() as f64)
    }

    /// Number of the next step.
    pub fn next_step(&self) -> u64 {
        self.machine.next_step()
    }

    /// Returns the parameters, in the model's order.
    pub fn values(&self) -> Vec<Vec<f32>> {
        self.buffers(0)
    }

    /// Returns the optimiser's state, in the model's order.
    pub fn optimizer(&self) -> AdamW {
        AdamW { means: self.buffers(1), squares: self.buffers(2), updates: self.machine.updates() }
    }

    /// Model that is trained.
    pub fn model(&self) -> &'a GraphModel {
        self.model
    }

    /// Exchange with the other ranks.
    pub fn exchange(&self) -> &Synchronizer {
        self.machine.sync()
    }

    /// Exchange with the other ranks, to synchronise other things between steps.
    pub fn exchange_mut(&mut self) -> &mut Synchronizer {
        self.machine.sync_mut()
    }

    fn buffers(&self, which: usize) -> Vec<Vec<f32>> {
        let mut all = vec![Vec::new(); self.model.places().len()];
        for (index, place) in self.model.places().iter().enumerate() {
            all[*place] = self.machine.buffers(index)[which].to_vec();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{alone, batch, model, options};

    #[test]
    fn training_lowers_the_loss() {
        let model = model(16);
        let mut trainer = alone(&model, options(), 1);
        let batch = batch(4, 8, 2);
        let first = trainer.step(&batch).unwrap();
        for _ in 0..40 {
            trainer.step(&batch).unwrap();
        }
        let last = trainer.loss(&[batch]).unwrap();
        assert!(last < f64::from(first.loss) - 1.0, "{} to {last}", first.loss);
        assert!((first.loss - 256_f32.ln()).abs() < 1.5);
    }

    #[test]
    fn a_skipped_step_changes_nothing_but_the_count() {
        let model = model(4);
        let mut trainer = alone(&model, options(), 1);
        let (mut values, optimizer) = (trainer.values(), trainer.optimizer());
        let sound = values.clone();
        values[0][0] = f32::NAN;
        trainer.restore(0, &values, &optimizer).unwrap();
        assert!(trainer.step(&batch(4, 8, 2)).unwrap().skipped);
        assert_eq!((trainer.optimizer(), trainer.next_step()), (optimizer.clone(), 1));
        let rest = |values: Vec<Vec<f32>>| values[1..].to_vec();
        assert_eq!(rest(trainer.values()), rest(values));
        trainer.restore(1, &sound, &optimizer).unwrap();
        assert!(!trainer.step(&batch(4, 8, 2)).unwrap().skipped);
        assert!(sound != trainer.values());
    }

    #[test]
    fn only_matrices_are_rounded_to_bf16() {
        let model = model(4);
        let options = Options { gradients: Gradients::MixedBf16, ..options() };
        let mut trainer = alone(&model, options, 1);
        trainer.step(&batch(4, 8, 2)).unwrap();
        for (index, parameter) in model.parameters().iter().enumerate() {
            let gradient = trainer.exchange().gradient(index);
            let rounded = gradient.iter().all(|value| value.to_bits() & 0xffff == 0);
            assert_eq!(rounded, parameter.is_matrix(), "{}", parameter.name);
        }
    }
}
