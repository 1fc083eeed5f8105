//! The training step.
//!
//! Batch, backward with gradients leaving as they become ready, the exchange's end, clipping of
//! the averaged gradient, AdamW. Every rank does the same arithmetic on the same averaged bits, so
//! parameters stay bit-identical without ever being compared.

use std::time::Instant;

use crate::error::{Error, Kind};
use crate::optimizer::{AdamW, AdamWOptions, LearningRate, Pace, clip_scale, global_norm};
use crate::{Batch, Exchange, Model, Outcome};

/// Settings of a [`Trainer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The optimiser.
    pub adamw: AdamWOptions,
    /// Learning rate.
    pub learning_rate: LearningRate,
    /// The greatest norm of the averaged gradient.
    pub gradient_norm_max: Option<f32>,
    /// Precision that gradients are rounded to before they are handed over.
    pub gradients: Gradients,
}

impl Default for Options {
    fn default() -> Options {
        let learning_rate = LearningRate { peak: 1e-3, floor: 1e-4, warmup_steps: 20, steps: 1000 };
        Options {
            adamw: AdamWOptions::default(),
            learning_rate,
            gradient_norm_max: Some(1.0),
            gradients: Gradients::F32,
        }
    }
}

/// The precision of the gradients that leave a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradients {
    /// As backward gives them.
    F32,
    /// bf16 for matrices, rounded to nearest, ties to even; f32 for norms and biases, which are
    /// few.
    MixedBf16,
}

/// Report of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The step, counted from 0.
    pub step: u64,
    /// The mean loss over this rank's rows.
    pub loss: f32,
    /// The norm of the averaged gradient before clipping; NaN in a skipped step.
    pub gradient_norm: f64,
    /// The learning rate.
    pub learning_rate: f32,
    /// Seconds of forward and backward, without handing over.
    pub compute_s: f64,
    /// Seconds of handing gradients over, between pieces of backward.
    pub handover_s: f64,
    /// Seconds of waiting for the exchange after backward: what overlap did not hide.
    pub exposed_wait_s: f64,
    /// Seconds of clipping and AdamW.
    pub optimizer_s: f64,
    /// Some rank's gradient was not finite, and nothing was changed.
    pub skipped: bool,
}

/// A model in training, on one rank.
#[derive(Debug)]
pub struct Trainer<M, X> {
    model: M,
    exchange: X,
    options: Options,
    values: Vec<Vec<f32>>,
    optimizer: AdamW,
    step: u64,
}

impl<M: Model, X: Exchange> Trainer<M, X> {
    /// A trainer at step 0, its parameters initialised by `seed`: the same on every rank.
    pub fn new(model: M, exchange: X, options: Options, seed: u64) -> Trainer<M, X> {
        let values = model.initial(seed);
        let optimizer = AdamW::new(model.parameters());
        Trainer { model, exchange, options, values, optimizer, step: 0 }
    }

    /// Goes on from a checkpoint.
    ///
    /// # Errors
    /// If the buffers are not as long as the model's parameters.
    pub fn restore(
        &mut self,
        step: u64,
        values: Vec<Vec<f32>>,
        optimizer: AdamW,
    ) -> Result<(), Error> {
        for buffers in [&values, &optimizer.means, &optimizer.squares] {
            let found: Vec<usize> = buffers.iter().map(Vec::len).collect();
            let expected: Vec<usize> = self.values.iter().map(Vec::len).collect();
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
        (self.step, self.values, self.optimizer) = (step, values, optimizer);
        Ok(())
    }

    /// One step on this rank's share of the batch.
    ///
    /// # Errors
    /// If the exchange fails. Parameters are then as before the step.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport, Error> {
        let step = self.step;
        let learning_rate = self.options.learning_rate.at(step);

        self.exchange.begin(step).map_err(Error::exchange)?;
        let started = Instant::now();
        let (loss, handover_s) = self.backward(batch)?;
        let backward_s = seconds(started);

        let started = Instant::now();
        let outcome = self.exchange.finish().map_err(Error::exchange)?;
        let exposed_wait_s = seconds(started);

        let started = Instant::now();
        let gradient_norm = match outcome {
            Outcome::Averaged => self.update(learning_rate),
            Outcome::Skipped => f64::NAN,
        };
        self.step += 1;
        Ok(StepReport {
            step,
            loss,
            gradient_norm,
            learning_rate,
            compute_s: backward_s - handover_s,
            handover_s,
            exposed_wait_s,
            optimizer_s: seconds(started),
            skipped: outcome == Outcome::Skipped,
        })
    }

    /// The mean loss over `batches`, without training; NaN if there are none.
    pub fn loss(&self, batches: &[Batch]) -> f64 {
        let losses = batches.iter().map(|batch| f64::from(self.model.loss(&self.values, batch)));
        losses.sum::<f64>() / batches.len() as f64
    }

    /// The number of the next step.
    pub fn next_step(&self) -> u64 {
        self.step
    }

    /// The parameters, in the model's order.
    pub fn values(&self) -> &[Vec<f32>] {
        &self.values
    }

    /// The optimiser's state.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The exchange.
    pub fn exchange(&self) -> &X {
        &self.exchange
    }

    /// The exchange, to synchronise other things between steps.
    pub fn exchange_mut(&mut self) -> &mut X {
        &mut self.exchange
    }

    fn backward(&mut self, batch: &Batch) -> Result<(f32, f64), Error> {
        let parameters = self.model.parameters();
        let (exchange, precision) = (&mut self.exchange, self.options.gradients);
        let mut handover_s = 0.0;
        let loss = self.model.loss_and_gradients(&self.values, batch, &mut |index, gradient| {
            let started = Instant::now();
            if precision == Gradients::MixedBf16 && parameters[index].is_matrix() {
                gradient.iter_mut().for_each(|value| *value = round_bf16(*value));
            }
            exchange.ready(index, gradient).map_err(Error::exchange)?;
            handover_s += seconds(started);
            Ok(())
        })?;
        Ok((loss, handover_s))
    }

    fn update(&mut self, learning_rate: f32) -> f64 {
        let parameters = self.model.parameters();
        let exchange = &self.exchange;
        let norm = global_norm((0..parameters.len()).map(|index| exchange.gradient(index)));
        let gradient_scale = clip_scale(norm, self.options.gradient_norm_max);
        let pace = Pace { learning_rate, gradient_scale };
        let gradient = |index| exchange.gradient(index);
        self.optimizer.update(parameters, &mut self.values, gradient, pace, &self.options.adamw);
        norm
    }
}

fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if value.is_finite() { f32::from_bits(rounded) } else { value }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Failure;
    use crate::testing::{batch, options};
    use crate::{Alone, Mlp};

    #[test]
    fn training_lowers_the_loss() {
        let mut trainer = Trainer::new(Mlp::new(16), Alone::new(), options(), 1);
        let batch = batch(4, 16, 2);
        let first = trainer.step(&batch).unwrap();
        for _ in 0..40 {
            trainer.step(&batch).unwrap();
        }
        let last = trainer.loss(&[batch]);
        assert!(last < f64::from(first.loss) - 1.0, "{} to {last}", first.loss);
        assert!((first.loss - 256_f32.ln()).abs() < 1.5);
    }

    /// An exchange that spoils one gradient on its way.
    struct Spoiled(Alone, f32);

    impl Exchange for Spoiled {
        fn begin(&mut self, step: u64) -> Result<(), Failure> {
            self.0.begin(step)
        }

        fn ready(&mut self, parameter: usize, gradient: &[f32]) -> Result<(), Failure> {
            let mut gradient = gradient.to_vec();
            gradient[0] += self.1;
            self.0.ready(parameter, &gradient)
        }

        fn finish(&mut self) -> Result<Outcome, Failure> {
            self.0.finish()
        }

        fn gradient(&self, parameter: usize) -> &[f32] {
            self.0.gradient(parameter)
        }
    }

    #[test]
    fn a_skipped_step_changes_nothing_but_the_count() {
        let exchange = Spoiled(Alone::new(), f32::NAN);
        let mut trainer = Trainer::new(Mlp::new(4), exchange, options(), 1);
        let before = (trainer.values.clone(), trainer.optimizer.clone());
        assert!(trainer.step(&batch(1, 4, 2)).unwrap().skipped);
        assert!(before == (trainer.values.clone(), trainer.optimizer.clone()));
        assert_eq!(trainer.next_step(), 1);
        trainer.exchange_mut().1 = 0.0;
        assert!(!trainer.step(&batch(1, 4, 2)).unwrap().skipped);
        assert!(before.0 != trainer.values);
    }

    #[test]
    fn only_matrices_are_rounded_to_bf16() {
        let options = Options { gradients: Gradients::MixedBf16, ..options() };
        let mut trainer = Trainer::new(Mlp::new(4), Alone::new(), options, 1);
        trainer.step(&batch(2, 8, 2)).unwrap();
        for (index, parameter) in trainer.model.parameters().iter().enumerate() {
            let gradient = trainer.exchange.gradient(index);
            let rounded = gradient.iter().all(|value| value.to_bits() & 0xffff == 0);
            assert_eq!(rounded, parameter.is_matrix(), "{}", parameter.name);
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let unit = 2_f32.powi(-7);
        let cases = [(1.0 + unit * 0.5, 1.0), (1.0 + unit * 1.5, 1.0 + unit * 2.0)];
        for (value, expected) in cases {
            assert_eq!(round_bf16(value), expected);
            assert_eq!(round_bf16(-value), -expected);
        }
        assert!(round_bf16(f32::NAN).is_nan());
        assert_eq!(round_bf16(f32::INFINITY), f32::INFINITY);
    }
}
