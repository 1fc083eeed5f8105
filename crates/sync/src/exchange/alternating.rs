//! PowerSGD with alternating factors, on a bucket: one all-reduce a step.
//!
//! All matrices of a bucket share the message. A matrix that two factors would not shrink travels
//! whole in it. The algebra is `thinwire_codec`'s; here are the ranges of elements.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Alternating as Factors, Finite, PowerSgd, kernel};
use thinwire_collective::{Program, Run};
use thinwire_schedule::Summation;
use thinwire_wire::random::Key;

use crate::buffer::Tensor;
use crate::exchange::powersgd::FACTOR;
use crate::exchange::route::{Ranks, Route};
use crate::exchange::{Departure, Exchange, Progress};
use crate::{Error, Outcome};

/// One matrix of a bucket.
#[derive(Debug)]
struct Matrix {
    /// The elements in the bucket.
    elements: Range<usize>,
    /// The factors; `None` if the matrix travels whole.
    factors: Option<Factors>,
}

/// The factors of a bucket, and the programs that carry its message.
#[derive(Debug)]
pub(crate) struct Alternating {
    matrices: Vec<Matrix>,
    summation: Summation,
    ranks: Ranks,
    /// One for each length of the message, which alternates.
    programs: Vec<Arc<Program>>,
    underway: Option<Underway>,
}

/// A step of a bucket between its beginning and its commit.
#[derive(Debug)]
struct Underway {
    /// The new residual.
    values: Vec<f32>,
    residual: Vec<f32>,
    /// The sum over ranks of the messages; empty until it has come.
    sum: Vec<f32>,
}

impl Alternating {
    /// Returns new factors, the same on all ranks.
    pub(crate) fn new(codec: PowerSgd, route: &Route<'_>) -> Alternating {
        let matrices = route.matrices.iter().enumerate();
        let matrices = matrices.map(|(index, (elements, (rows, columns)))| {
            let key = Key { step: index as u64, ..route.key };
            let compresses = codec.compresses(*rows, *columns);
            let factors = compresses.then(|| codec.alternating(*rows, *columns, key));
            Matrix { elements: elements.clone(), factors }
        });
        Alternating {
            matrices: matrices.collect(),
            summation: route.summation,
            ranks: route.ranks.clone(),
            programs: Vec::new(),
            underway: None,
        }
    }

    /// Returns the program of this step's message.
    fn program(&mut self, length: usize) -> Arc<Program> {
        if let Some(program) = self.programs.iter().find(|program| program.elements() == length) {
            return Arc::clone(program);
        }
        let program = self.ranks.sum(self.summation, length);
        self.programs.push(Arc::clone(&program));
        program
    }

    /// Returns the message of `values + residual` and leaves in `values` the new residual. A message
    /// that is not finite has a NaN, so that all ranks see it.
    fn project(&self, values: &mut [f32], residual: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; self.matrices.iter().map(Matrix::message_len).sum()];
        let mut rest = all.as_mut_slice();
        for matrix in &self.matrices {
            let (message, after) = rest.split_at_mut(matrix.message_len());
            rest = after;
            let values = &mut values[matrix.elements.clone()];
            let residual = &residual[matrix.elements.clone()];
            match &matrix.factors {
                Some(factors) if factors.project(values, residual, message) == Finite::Yes => {
                    factors.subtract(message, values);
                }
                Some(_) => message[0] = f32::NAN,
                None => {
                    kernel::add(values, residual);
                    message.copy_from_slice(values);
                    values.fill(0.0);
                }
            }
        }
        all
    }
}

/// Returns a message of sums, with a NaN for all ranks to see if the gradients are not finite.
fn marked(mut message: Vec<f32>, finite: Finite) -> Vec<f32> {
    if finite == Finite::No
        && let Some(first) = message.first_mut()
    {
        *first = f32::NAN;
    }
    message
}

impl Exchange for Alternating {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { values, residual, finite, address, .. } = departure;
        let mut values = values.into_owned();
        let residual = residual.expect("a bucket with factors has a residual").into_owned();
        let message = marked(self.project(&mut values, &residual), finite);
        let program = self.program(message.len());
        self.underway = Some(Underway { values, residual, sum: Vec::new() });
        Run::new(program, address, self.ranks.world, Tensor::Owned(message), None)
    }

    fn sent_bytes(&mut self) -> u64 {
        let length = self.matrices.iter().map(Matrix::message_len).sum();
        self.program(length).sent_bytes()
    }

    fn next(&mut self, run: Run<Tensor>) -> Progress {
        let underway = self.underway.as_mut().expect("a run was begun");
        underway.sum = run.into_parts().0.into_owned();
        Progress::Done(Finite::from(kernel::is_finite(&underway.sum)))
    }

    /// Writes the sum over the old residual, and lets the next step send the other factors.
    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error> {
        let underway = self.underway.take().expect("a run is done before it is committed");
        let Underway { values, residual: mut output, sum } = underway;
        if outcome == Outcome::Skipped {
            return Ok((Tensor::Owned(values), Tensor::Owned(output)));
        }
        let mut rest = sum.as_slice();
        for matrix in &mut self.matrices {
            let (message, after) = rest.split_at(matrix.message_len());
            rest = after;
            let output = &mut output[matrix.elements.clone()];
            match &mut matrix.factors {
                Some(factors) => {
                    factors.reconstruct(message, output);
                    factors.commit(message);
                }
                None => output.copy_from_slice(message),
            }
        }
        Ok((Tensor::Owned(output), Tensor::Owned(values)))
    }

    fn state(&self, matrix: usize) -> Option<(&'static str, Vec<f32>)> {
        self.matrices[matrix].factors.as_ref().map(|factors| (FACTOR, factors.state()))
    }

    fn load(&mut self, matrix: usize, state: &[f32]) {
        if let Some(factors) = &mut self.matrices[matrix].factors {
            factors.resume(state);
        }
    }
}

impl Matrix {
    fn message_len(&self) -> usize {
        self.factors.as_ref().map_or(self.elements.len(), Factors::message_len)
    }
}
