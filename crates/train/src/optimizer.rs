//! Parameters of a rank and AdamW on them, with gradient clipping and a cosine schedule of its rate.
//!
//! The rule is crate `update`'s; weight decay applies only to matrices. The buffers are plain `f32`, so a
//! checkpoint holds them bit for bit. A step makes one pass over memory.

use rayon::prelude::*;
use thinwire_update::{AdamWOptions, MomentumStep, Step, adamw, adamw_by_momentum};

use crate::adam::{
    Adam, Local, Sending, Travel, Variance, changes_variance, steps_between, variance_updates,
};

/// A named parameter of a model: a flat `f32` buffer, so that checkpoints, optimiser and exchange never
/// handle a framework's tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Dotted name, unique in the model: `block.3.attention.query.weight`.
    pub name: String,
    /// Lengths of the dimensions; the buffer is row-major.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether this is a matrix. Weight decay and low-precision gradients apply to matrices, but
    /// not to norms and biases.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// Precision of the gradients that a rank sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gradients {
    /// f32, as the backward pass computes them.
    #[default]
    F32,
    /// bf16 for matrices, rounded to nearest, ties to even; f32 for norms and biases, which are few.
    MixedBf16,
}

/// Elements per task. Sums are formed per chunk, and then in order, so that the bits do not depend on the
/// number of threads.
const CHUNK: usize = 1 << 16;

/// The optimiser's state.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Running means of the gradients, by parameter.
    pub means: Vec<Vec<f32>>,
    /// Running means of the squared gradients, by parameter.
    pub squares: Vec<Vec<f32>>,
    /// Number of updates so far.
    pub updates: u64,
    /// Progress of the running means of squares until they are fixed.
    pub(crate) variance: Variance,
    /// State of this rank's local steps.
    pub(crate) local: Local,
}

impl AdamW {
    /// Returns the state before the first update.
    pub fn new(parameters: &[Parameter]) -> AdamW {
        let zeros = || parameters.iter().map(|p| vec![0.0; p.elements()]).collect();
        let (variance, local) = (Variance::default(), Local::default());
        AdamW { means: zeros(), squares: zeros(), updates: 0, variance, local }
    }

    /// Updates all `values` once. The gradient of parameter `i` is `gradient(i)` times `gradient_scale`.
    pub fn update<'g>(
        &mut self,
        parameters: &[Parameter],
        values: &mut [Vec<f32>],
        gradient: impl Fn(usize) -> &'g [f32],
        pace: Pace,
        options: &AdamWOptions,
    ) {
        self.updates += 1;
        let step = pace.step(self.updates);
        for (index, parameter) in parameters.iter().enumerate() {
            let options = &options_of(parameter, options);
            let state = [&mut self.means[index][..], &mut self.squares[index][..]];
            update(&mut values[index], gradient(index), state, step, options);
        }
    }

    /// Updates as [`AdamW::update`] does, after updates that have left the squares unchanged.
    pub(crate) fn update_with_squares<'g>(
        &mut self,
        parameters: &[Parameter],
        values: &mut [Vec<f32>],
        gradient: impl Fn(usize) -> &'g [f32],
        pace: Pace,
        options: &AdamWOptions,
    ) {
        let AdamWOptions { beta1, beta2, .. } = *options;
        let momenta = (0..parameters.len()).map(|index| {
            let state = self.means[index].iter().zip(&mut self.squares[index]);
            let state = state.zip(gradient(index)).map(|((mean, square), gradient)| {
                let gradient = gradient * pace.gradient_scale;
                *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
                beta1 * mean + (1.0 - beta1) * gradient
            });
            state.collect()
        });
        let momenta: Vec<Vec<f32>> = momenta.collect();
        let (pace, squared) = (Pace { gradient_scale: 1.0, ..pace }, self.squared() + 1);
        let unseen = self.unseen();
        self.move_by(
            parameters,
            values,
            |index| &momenta[index][..],
            |updates, options| MomentumStep::new(pace.step(updates), squared, unseen, options),
            options,
        );
    }

    /// Updates all `values` once by momenta, which replace the means; the squares stay unchanged. This
    /// update covers the present step and all local steps since the last exchange.
    pub(crate) fn update_by_momenta<'g>(
        &mut self,
        parameters: &[Parameter],
        values: &mut [Vec<f32>],
        momentum: impl Fn(usize) -> &'g [f32],
        pace: Pace,
        options: &AdamWOptions,
    ) {
        let (squared, unseen) = (self.squared(), self.unseen());
        let local = std::mem::take(&mut self.local);
        self.move_by(
            parameters,
            values,
            momentum,
            |updates, options| {
                let step = MomentumStep::new(pace.step(updates), squared, unseen, options);
                MomentumStep { rate: local.rate + step.rate, ..step }
            },
            options,
        );
    }

    /// Takes a local step by this rank's momenta. It changes the values that are equal on all ranks only by
    /// weight decay.
    pub(crate) fn update_locally<'g>(
        &mut self,
        parameters: &[Parameter],
        values: &mut [Vec<f32>],
        momentum: impl Fn(usize) -> &'g [f32],
        pace: Pace,
        options: &AdamWOptions,
    ) {
        let (squared, unseen) = (self.squared(), self.unseen());
        self.updates += 1;
        for (index, parameter) in parameters.iter().enumerate() {
            let options = options_of(parameter, options);
            let step = MomentumStep::new(pace.step(self.updates), squared, unseen, &options);
            let means = momentum(index).iter().map(|momentum| momentum * step.scale);
            self.means[index] = means.collect();
            values[index].iter_mut().for_each(|value| *value *= step.keep);
            self.local.add(index, &self.means[index], step);
        }
        self.local.rate += self.rate(self.updates, pace, options);
        self.local.steps += 1;
    }

    /// Ends local steps by the momenta of all ranks. A parameter whose `momentum` is `None` drops its local
    /// steps.
    pub(crate) fn unite<'g>(
        &mut self,
        values: &mut [Vec<f32>],
        momentum: impl Fn(usize) -> Option<&'g [f32]>,
    ) {
        let Local { rate, last, .. } = std::mem::take(&mut self.local);
        let Some(step) = last else { return };
        let step = MomentumStep { rate, keep: 1.0, scale: 1.0, ..step };
        for (index, values) in values.iter_mut().enumerate() {
            let (means, squares) = (&mut self.means[index], &self.squares[index]);
            match momentum(index) {
                Some(momentum) => adamw_by_momentum(values, momentum, means, squares, step),
                // What ranks have on their own differs.
                None => means.fill(0.0),
            }
        }
    }

    /// Fixes the means of squares after this number of updates, unless they are fixed already. Elements
    /// without a mean get the largest mean.
    pub(crate) fn fix(&mut self, updates: u64) {
        if self.variance.fixed.is_some() {
            return;
        }
        let unseen = self.unseen();
        let squares = self.squares.iter_mut().flatten().filter(|square| **square == 0.0);
        squares.for_each(|square| *square = unseen);
        self.variance.fix(updates);
    }

    /// Returns the largest mean of squares, which is used for elements without one; 0 once the means are fixed, since
    /// no such elements are left.
    fn unseen(&self) -> f32 {
        if self.variance.fixed.is_some() {
            return 0.0;
        }
        let largest = |squares: &Vec<f32>| squares.par_iter().copied().reduce(|| 0.0, f32::max);
        self.squares.iter().map(largest).fold(0.0, f32::max)
    }

    fn move_by<'m>(
        &mut self,
        parameters: &[Parameter],
        values: &mut [Vec<f32>],
        momentum: impl Fn(usize) -> &'m [f32],
        step: impl Fn(u64, &AdamWOptions) -> MomentumStep,
        options: &AdamWOptions,
    ) {
        self.updates += 1;
        for (index, parameter) in parameters.iter().enumerate() {
            let step = step(self.updates, &options_of(parameter, options));
            let state = self.means[index].par_chunks_mut(CHUNK);
            let state = state.zip(self.squares[index].par_chunks(CHUNK));
            let chunks = values[index].par_chunks_mut(CHUNK);
            let chunks = chunks.zip(momentum(index).par_chunks(CHUNK)).zip(state);
            chunks.for_each(|((values, momentum), (means, squares))| {
                adamw_by_momentum(values, momentum, means, squares, step);
            });
        }
    }

    /// Returns which values ranks exchange in the next step at this learning rate; it is the same on all
    /// ranks.
    pub(crate) fn travel(&mut self, adam: Adam, rate: f32) -> Travel {
        match adam {
            Adam::AdamW => Travel::Gradients,
            Adam::OneBit => Travel::Momenta,
            Adam::ZeroOne if self.variance.fixed.is_none() => {
                if changes_variance(self.updates) {
                    Travel::Gradients
                } else {
                    Travel::Momenta
                }
            }
            Adam::ZeroOne => {
                self.variance.peak = self.variance.peak.max(rate);
                let between = steps_between(self.variance.peak, rate);
                if self.local.steps + 1 < between { Travel::Nothing } else { Travel::Momenta }
            }
        }
    }

    /// Converts a gradient of this rank to the values that the rank hands over.
    pub(crate) fn hand_over(&self, index: usize, gradient: &mut [f32], sending: Sending) {
        let Sending { travel, beta1, rate } = sending;
        if travel == Travel::Gradients {
            return;
        }
        let momentum = gradient.iter_mut().zip(&self.means[index]);
        momentum.for_each(|(value, mean)| *value = beta1 * mean + (1.0 - beta1) * *value);
        if travel == Travel::Momenta {
            self.local.average(index, gradient, rate);
        }
    }

    /// Returns the learning rate of update `number`, with its bias correction.
    pub(crate) fn rate(&self, number: u64, pace: Pace, options: &AdamWOptions) -> f32 {
        MomentumStep::new(pace.step(number), self.squared(), 0.0, options).rate
    }

    /// Returns the number of updates that have changed the squares, for forms of Adam that exchange
    /// momenta.
    pub(crate) fn squared(&self) -> u64 {
        self.variance.fixed.unwrap_or_else(|| variance_updates(self.updates))
    }

    /// Returns the sum of the squares of all parameters, which does not depend on the number of threads.
    pub(crate) fn sum_of_squares(&self) -> f64 {
        let of_chunk = |chunk: &[f32]| chunk.iter().map(|value| f64::from(*value)).sum::<f64>();
        let of = |squares: &Vec<f32>| {
            let sums: Vec<f64> = squares.par_chunks(CHUNK).map(of_chunk).collect();
            sums.iter().sum::<f64>()
        };
        self.squares.iter().map(of).sum()
    }
}

/// Returns the options for a parameter; weight decay applies only to matrices.
fn options_of(parameter: &Parameter, options: &AdamWOptions) -> AdamWOptions {
    let weight_decay = if parameter.is_matrix() { options.weight_decay } else { 0.0 };
    AdamWOptions { weight_decay, ..*options }
}

/// Learning rate and scale of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The step's learning rate.
    pub learning_rate: f32,
    /// Factor of each gradient before the update, from [`clip_scale`].
    pub gradient_scale: f32,
}

impl Pace {
    /// Returns the update of this number.
    fn step(self, number: u64) -> Step {
        let Pace { learning_rate, gradient_scale } = self;
        Step { number, learning_rate, gradient_scale }
    }
}

/// Applies the rule chunk by chunk, on all available threads.
fn update(
    values: &mut [f32],
    gradient: &[f32],
    [means, squares]: [&mut [f32]; 2],
    step: Step,
    options: &AdamWOptions,
) {
    assert_eq!(values.len(), gradient.len(), "gradient of another length");
    let state = means.par_chunks_mut(CHUNK).zip(squares.par_chunks_mut(CHUNK));
    let chunks = values.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).zip(state);
    chunks.for_each(|((values, gradient), (means, squares))| {
        adamw(values, gradient, [means, squares], step, options);
    });
}

/// Returns the Euclidean norm of all gradients together, summed in `f64` in a fixed order.
pub fn global_norm<'g>(gradients: impl Iterator<Item = &'g [f32]>) -> f64 {
    gradients.map(sum_of_squares).sum::<f64>().sqrt()
}

/// Returns the factor that reduces gradients of norm `norm` to a norm of at most `norm_max`.
pub fn clip_scale(norm: f64, norm_max: Option<f32>) -> f32 {
    match norm_max {
        Some(limit) if norm > f64::from(limit) => (f64::from(limit) / norm) as f32,
        _ => 1.0,
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let sums: Vec<f64> = values.par_chunks(CHUNK).map(chunk_sum_of_squares).collect();
    sums.iter().sum()
}

fn chunk_sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let chunks = values.chunks_exact(8);
    let tail: f64 = chunks.remainder().iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum::<f64>() + tail
}

/// A learning rate that rises linearly and then falls along half a cosine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The highest rate, reached after the warm-up.
    pub peak: f32,
    /// The lowest rate, reached at the last step.
    pub floor: f32,
    /// Steps of linear rise.
    pub warmup_steps: u64,
    /// Number of all steps, including the warm-up.
    pub steps: u64,
}

impl LearningRate {
    /// Returns the rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f32 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f32 / self.warmup_steps as f32;
        }
        let span = self.steps.saturating_sub(self.warmup_steps).max(1);
        let done = ((step - self.warmup_steps) as f64 / span as f64).min(1.0);
        let share = 0.5 + 0.5 * (std::f64::consts::PI * done).cos();
        self.floor + (self.peak - self.floor) * share as f32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameter(shape: &[usize]) -> Parameter {
        Parameter { name: "p".to_owned(), shape: shape.to_vec() }
    }

    /// Computes algorithm 2 of the paper for one number in f64.
    fn reference(start: f64, gradients: &[f64], rate: f64, decay: f64) -> f64 {
        let options = AdamWOptions::default();
        let (beta1, beta2) = (f64::from(options.beta1), f64::from(options.beta2));
        let (mut value, mut mean, mut square) = (start, 0.0, 0.0);
        for (t, gradient) in gradients.iter().enumerate() {
            mean = beta1 * mean + (1.0 - beta1) * gradient;
            square = beta2 * square + (1.0 - beta2) * gradient * gradient;
            let corrected = mean / (1.0 - beta1.powi(t as i32 + 1));
            let root = (square / (1.0 - beta2.powi(t as i32 + 1))).sqrt();
            value -= rate * (corrected / (root + 1e-8) + decay * value);
        }
        value
    }

    proptest! {
        #[test]
        fn an_update_is_the_formula_of_the_paper(
            start in -2.0_f32..2.0, gradients in prop::collection::vec(-3.0_f32..3.0, 1..6)
        ) {
            let options = AdamWOptions::default();
            for (shape, decay) in [(vec![1, 1], 0.1), (vec![1], 0.0)] {
                let parameters = [parameter(&shape)];
                let mut values = vec![vec![start]];
                let mut state = AdamW::new(&parameters);
                for gradient in &gradients {
                    let doubled = [gradient * 2.0];
                    let pace = Pace { learning_rate: 0.01, gradient_scale: 0.5 };
                    state.update(&parameters, &mut values, |_| &doubled, pace, &options);
                }
                let gradients: Vec<f64> = gradients.iter().map(|g| f64::from(*g)).collect();
                let expected = reference(f64::from(start), &gradients, 0.01, decay);
                prop_assert!((f64::from(values[0][0]) - expected).abs() < 1e-5);
            }
        }

        #[test]
        fn a_clipped_gradient_has_the_greatest_norm_allowed(
            gradient in prop::collection::vec(-9.0_f32..9.0, 1..40), limit in 0.1_f32..4.0
        ) {
            let norm = global_norm([&gradient[..]].into_iter());
            let expected = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            prop_assert!((norm - expected).abs() < 1e-9);
            let clipped = norm * f64::from(clip_scale(norm, Some(limit)));
            prop_assert!((clipped - norm.min(f64::from(limit))).abs() < 1e-5);
            prop_assert_eq!(clip_scale(norm, None), 1.0);
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let parameters = [parameter(&[3, CHUNK])];
        let gradient: Vec<f32> = (0..3 * CHUNK).map(|i| (i as f32 * 0.37).sin()).collect();
        let run = |threads| {
            let mut values = vec![vec![0.5; 3 * CHUNK]];
            let mut state = AdamW::new(&parameters);
            let pace = Pace { learning_rate: 0.01, gradient_scale: 0.5 };
            let work = || {
                let options = AdamWOptions::default();
                state.update(&parameters, &mut values, |_| &gradient, pace, &options);
                global_norm([&gradient[..]].into_iter())
            };
            let norm = crate::with_threads(threads, work).unwrap();
            (norm.to_bits(), values, state)
        };
        assert!(run(1) == run(3));
    }

    #[test]
    fn the_rate_rises_then_falls_to_its_floor() {
        let rate = LearningRate { peak: 1.0, floor: 0.1, warmup_steps: 4, steps: 24 };
        assert_eq!([rate.at(0), rate.at(3), rate.at(4)], [0.25, 1.0, 1.0]);
        assert!((rate.at(14) - 0.55).abs() < 1e-6);
        assert!((rate.at(24) - 0.1).abs() < 1e-6 && (rate.at(1000) - 0.1).abs() < 1e-6);
        assert!((4..24).all(|step| rate.at(step + 1) < rate.at(step)));
    }
}
