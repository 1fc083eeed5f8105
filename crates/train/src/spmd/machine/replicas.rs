//! Replicas: ranks that have the whole model each, and average its gradients by crate `sync`.
//!
//! A gradient leaves as soon as its last share is there; that of a table which the head shares, when
//! backward ends. Gradients of several micro-batches leave during the last one. Law: after a step every
//! replica has the same parameters, bit for bit.

use std::time::Instant;

use thinwire_program::{Instruction, Program};
use thinwire_sync::{Outcome, Synchronizer};

use crate::error::Error;
use crate::{Gradients, global_norm};

/// Exchange between this rank and its replicas.
#[derive(Debug)]
pub(crate) struct Replicas {
    sync: Synchronizer,
    /// For every parameter of the program, its place among the synchroniser's.
    places: Vec<usize>,
    /// For every parameter of the program, whether its gradient is rounded before it leaves.
    rounded: Vec<bool>,
    /// Seconds of handing gradients over in this step, and of waiting after the last one.
    pub handover_s: f64,
    pub exposed_wait_s: f64,
}

impl Replicas {
    /// Exchange of a program's gradients. `sync` has the parameters in [`completion_order`];
    /// `is_matrix` says which gradients [`Gradients::MixedBf16`] rounds.
    pub fn new(
        sync: Synchronizer,
        program: &Program,
        gradients: Gradients,
        is_matrix: impl Fn(usize) -> bool,
    ) -> Replicas {
        let order = completion_order(program);
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, index)| places[*index] = place);
        let rounds = |index| gradients == Gradients::MixedBf16 && is_matrix(index);
        let rounded = (0..order.len()).map(rounds).collect();
        Replicas { sync, places, rounded, handover_s: 0.0, exposed_wait_s: 0.0 }
    }

    /// Begins a step.
    pub fn begin(&mut self, step: u64) -> Result<(), Error> {
        (self.handover_s, self.exposed_wait_s) = (0.0, 0.0);
        self.sync.begin(step).map_err(Error::exchange)
    }

    /// Hands over the gradient of a parameter, summed over this rank's micro-batches.
    pub fn ready(
        &mut self,
        index: usize,
        mut gradient: Vec<f32>,
        micro_batches: usize,
    ) -> Result<(), Error> {
        let started = Instant::now();
        if micro_batches > 1 {
            let mean = 1.0 / micro_batches as f32;
            gradient.iter_mut().for_each(|value| *value *= mean);
        }
        if self.rounded[index] {
            gradient.iter_mut().for_each(|value| *value = round_bf16(*value));
        }
        self.sync.ready(self.places[index], &gradient[..]).map_err(Error::exchange)?;
        self.handover_s += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Waits for the averages of all gradients.
    pub fn finish(&mut self) -> Result<Outcome, Error> {
        let started = Instant::now();
        let outcome = self.sync.finish().map_err(Error::exchange)?;
        self.exposed_wait_s = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Returns the averaged gradient of a parameter of the program.
    pub fn gradient(&self, index: usize) -> &[f32] {
        self.sync.gradient(self.places[index])
    }

    /// Returns the Euclidean norm of all averaged gradients together.
    pub fn norm(&self) -> f64 {
        global_norm((0..self.places.len()).map(|place| self.sync.gradient(place)))
    }

    pub fn sync(&self) -> &Synchronizer {
        &self.sync
    }

    pub fn sync_mut(&mut self) -> &mut Synchronizer {
        &mut self.sync
    }
}

/// Returns the parameters of a program in the order in which their gradients are complete.
pub(in crate::spmd) fn completion_order(program: &Program) -> Vec<usize> {
    let mut missing: Vec<usize> = program.parameters.iter().map(|p| p.shares).collect();
    let shares = program.backward[0].iter().filter_map(|instruction| match instruction {
        Instruction::Gradient { parameter, .. } => Some(*parameter),
        _ => None,
    });
    let complete = shares.filter(|parameter| {
        missing[*parameter] -= 1;
        missing[*parameter] == 0
    });
    complete.collect()
}

/// Rounds to bf16, to nearest, ties to even.
fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if value.is_finite() { f32::from_bits(rounded) } else { value }
}

#[cfg(test)]
mod tests {
    use super::round_bf16;

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
