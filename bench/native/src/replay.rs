//! The replay of a training step: a model's gradients, handed over as backward would have them ready.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use thinwire_sync::{Options, Outcome, Parameter, Synchronizer, processor_time};
use thinwire_wire::random::Key;

use crate::shapes::Tensor;

/// Arithmetic between two looks at the clock.
const SPINS: u32 = 20_000;

/// Whatever does the arithmetic of forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Computing {
    /// A clock, as where a GPU computes: no core is busy
    Clock,
    /// This rank's core, for as much of its own time: what else runs there delays it
    Core,
}

/// A model's gradients and the times at which they are ready.
pub struct Replay {
    computing: Computing,
    tensors: Vec<Tensor>,
    /// The time of computing until each tensor is ready, from the beginning of a step.
    ready: Vec<Duration>,
    /// Values of which every gradient is the beginning.
    values: Vec<f32>,
}

impl Replay {
    /// Returns the replay of a model whose step computes for `compute`, with values of `rank`'s own.
    pub fn new(tensors: Vec<Tensor>, compute: Duration, computing: Computing, rank: u32) -> Replay {
        let work: f64 = tensors.iter().map(|tensor| tensor.work).sum();
        // A third of the time is forward's.
        let ready = tensors.iter().scan(0.0, |done, tensor| {
            *done += tensor.work;
            Some(compute.mul_f64((1.0 + 2.0 * *done / work) / 3.0))
        });
        let ready = ready.collect();
        let largest = tensors.iter().map(|tensor| tensor.parameter.elements()).max().unwrap_or(0);
        Replay { computing, tensors, ready, values: values(largest, rank) }
    }

    /// Returns the parameters, those of the last layer first.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.tensors.iter().map(|tensor| tensor.parameter.clone()).collect()
    }

    /// Returns `options` for ranks that compute like this.
    pub fn options(&self, options: Options) -> Options {
        match self.computing {
            Computing::Clock => Options { local_ranks: Some(0), ..options },
            Computing::Core => Options { local_ranks: None, ..options },
        }
    }

    /// Runs a step, and returns its time on the slowest rank, in seconds.
    ///
    /// # Errors
    /// If the ranks lose each other, or the step was skipped.
    pub fn step(&self, sync: &mut Synchronizer, step: u64) -> Result<f64> {
        let begun = Instant::now();
        let processor = processor_time();
        sync.begin(step)?;
        for (index, (tensor, ready)) in self.tensors.iter().zip(&self.ready).enumerate() {
            match self.computing {
                Computing::Clock => thread::sleep(ready.saturating_sub(begun.elapsed())),
                Computing::Core => compute_until(processor + *ready),
            }
            sync.ready(index, &self.values[..tensor.parameter.elements()])?;
        }
        ensure!(sync.finish()? == Outcome::Averaged, "step {step} was skipped");
        let mine = begun.elapsed().as_secs_f32();
        Ok(sync.gather(&[mine])?.into_iter().fold(0.0, f32::max).into())
    }
}

/// Returns so many values with the tails of gradients: normal numbers, each row of 64 of a scale of its own.
fn values(count: usize, rank: u32) -> Vec<f32> {
    let key = |tensor| Key { seed: u64::from(rank), step: 0, tensor };
    let (normal, scale) = (key(0), key(1));
    let value = |i: u64| 1e-3 * normal.normal(i) * scale.normal(i / 64).exp();
    (0..count as u64).map(value).collect()
}

/// Computes until this thread has had so much processor time.
fn compute_until(processor: Duration) {
    let mut value = 1.0_f32;
    while processor_time() < processor {
        for _ in 0..SPINS {
            value = std::hint::black_box(value).mul_add(0.999, 0.001);
        }
    }
}
