//! PowerSGD on a bucket: two all-reduces of factors.
//!
//! All matrices of a bucket share both messages. A matrix that two factors would not shrink travels
//! whole in the first message. The algebra is `thinwire_codec`'s; here are the ranges of elements.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Factor, Finite, PowerSgd, kernel};
use thinwire_collective::{Address, Program, Run};
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::buffer::Tensor;
use crate::exchange::route::Route;
use crate::exchange::{Departure, Exchange, Progress};
use crate::{Error, Outcome};

/// The name of a matrix's factor in a checkpoint.
pub(crate) const FACTOR: &str = "factor";

/// One matrix of a bucket.
#[derive(Debug)]
struct Matrix {
    /// The elements in the bucket.
    elements: Range<usize>,
    /// The range of `p`, or of the whole matrix if it has no factor, in the first message.
    first: Range<usize>,
    /// The range of `q` in the second message.
    second: Range<usize>,
    /// The subspace; none if the matrix travels whole.
    factor: Option<Factor>,
}

/// The factors of a bucket, and the programs that carry its two messages.
#[derive(Debug)]
pub(crate) struct LowRank {
    matrices: Vec<Matrix>,
    programs: [Arc<Program>; 2],
    world: World,
    underway: Option<Underway>,
}

/// A step of a bucket between its beginning and its commit.
#[derive(Debug)]
struct Underway {
    values: Vec<f32>,
    residual: Vec<f32>,
    address: Address,
    /// The sum over ranks of the first message, `p` orthonormal; empty until it has come.
    first: Vec<f32>,
    /// This rank's `q`.
    mine: Vec<f32>,
    /// The sum over ranks of `q`.
    second: Vec<f32>,
    /// Whether all gradients of this rank are finite.
    finite: Finite,
}

impl LowRank {
    /// Fresh factors, the same on all ranks.
    pub(crate) fn new(codec: PowerSgd, route: &Route<'_>) -> LowRank {
        let (mut first, mut second) = (0, 0);
        let place = |end: &mut usize, length: usize| {
            *end += length;
            *end - length..*end
        };
        let matrices = route.matrices.iter().enumerate();
        let matrices = matrices.map(|(index, (elements, (rows, columns)))| {
            let key = Key { step: index as u64, ..route.key };
            let factor =
                codec.compresses(*rows, *columns).then(|| codec.factor(*rows, *columns, key));
            let first_length = factor.as_ref().map_or(elements.len(), Factor::p_len);
            let second_length = factor.as_ref().map_or(0, Factor::q_len);
            Matrix {
                elements: elements.clone(),
                first: place(&mut first, first_length),
                second: place(&mut second, second_length),
                factor,
            }
        });
        let matrices = matrices.collect();
        let programs = [first, second].map(|length| route.ranks.sum(route.summation, length));
        LowRank { matrices, programs, world: route.ranks.world, underway: None }
    }

    /// Adds the residual to the values and returns the first message. A message that is not finite has a
    /// NaN, so that all ranks see it.
    fn project(&self, values: &mut [f32], residual: &[f32]) -> Vec<f32> {
        let mut first = vec![0.0; self.programs[0].elements()];
        for matrix in &self.matrices {
            let (values, residual) =
                (&mut values[matrix.elements.clone()], &residual[matrix.elements.clone()]);
            let message = &mut first[matrix.first.clone()];
            match &matrix.factor {
                Some(factor) => {
                    if factor.project(values, residual, message) == Finite::No {
                        message[0] = f32::NAN;
                    }
                }
                None => {
                    kernel::add(values, residual);
                    message.copy_from_slice(values);
                }
            }
        }
        first
    }

    /// Orthonormalises the sum of the first messages and returns the second message.
    fn project_back(&self, values: &[f32], first: &mut [f32]) -> Vec<f32> {
        let mut second = vec![0.0; self.programs[1].elements()];
        for matrix in &self.matrices {
            if let Some(factor) = &matrix.factor {
                let (p, q) = (&mut first[matrix.first.clone()], &mut second[matrix.second.clone()]);
                factor.project_back(&values[matrix.elements.clone()], p, q);
            }
        }
        second
    }
}

/// Returns a message of sums, with a NaN for all ranks to see if the gradients are not finite.
pub(super) fn marked(mut message: Vec<f32>, finite: Finite) -> Vec<f32> {
    if finite == Finite::No
        && let Some(first) = message.first_mut()
    {
        *first = f32::NAN;
    }
    message
}

impl Exchange for LowRank {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { values, residual, finite, address, .. } = departure;
        let mut values = values.into_owned();
        let residual = residual.expect("a bucket with factors has a residual").into_owned();
        let message = Tensor::Owned(marked(self.project(&mut values, &residual), finite));
        let (first, mine, second) = (Vec::new(), Vec::new(), Vec::new());
        self.underway = Some(Underway { values, residual, address, first, mine, second, finite });
        Run::new(Arc::clone(&self.programs[0]), address, self.world, message, None)
    }

    fn sent_bytes(&mut self) -> u64 {
        self.programs.iter().map(|program| program.sent_bytes()).sum()
    }

    fn next(&mut self, run: Run<Tensor>) -> Progress {
        let mut underway = self.underway.take().expect("a run was begun");
        let is_first = run.address().tensor == underway.address.tensor;
        let sum = run.into_parts().0.into_owned();
        if is_first {
            underway.first = sum;
            underway.mine = self.project_back(&underway.values, &mut underway.first);
            let address = Address { tensor: underway.address.tensor + 1, ..underway.address };
            // A mark in the first message is gone where vectors that are not finite were replaced.
            let message = Tensor::Owned(marked(underway.mine.clone(), underway.finite));
            self.underway = Some(underway);
            let program = Arc::clone(&self.programs[1]);
            return Progress::Run(Run::new(program, address, self.world, message, None));
        }
        underway.second = sum;
        let finite = kernel::is_finite(&underway.first) && kernel::is_finite(&underway.second);
        self.underway = Some(underway);
        Progress::Done(Finite::from(finite))
    }

    /// The values become the new residual, the sum is written over the old one, and the next step goes
    /// on from the subspace that was found.
    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error> {
        let underway = self.underway.take().expect("a run is done before it is committed");
        let Underway { mut values, residual: mut sum, first, mine, second, .. } = underway;
        if outcome == Outcome::Skipped {
            return Ok((Tensor::Owned(values), Tensor::Owned(sum)));
        }
        for matrix in &mut self.matrices {
            let (values, sum) =
                (&mut values[matrix.elements.clone()], &mut sum[matrix.elements.clone()]);
            let (first, mine) = (&first[matrix.first.clone()], &mine[matrix.second.clone()]);
            let second = &second[matrix.second.clone()];
            match &mut matrix.factor {
                Some(factor) => {
                    factor.subtract(first, mine, values);
                    factor.reconstruct(first, second, sum);
                    factor.commit(second);
                }
                None => {
                    sum.copy_from_slice(first);
                    values.fill(0.0);
                }
            }
        }
        Ok((Tensor::Owned(sum), Tensor::Owned(values)))
    }

    /// The subspace of a matrix, if the matrix has one.
    fn state(&self, matrix: usize) -> Option<(&'static str, Vec<f32>)> {
        self.matrices[matrix].factor.as_ref().map(|factor| (FACTOR, factor.q().to_vec()))
    }

    fn load(&mut self, matrix: usize, subspace: &[f32]) {
        if let Some(factor) = &mut self.matrices[matrix].factor {
            factor.commit(subspace);
        }
    }
}
