//! PowerSGD whose factors take turns, on a bucket: one all-reduce a step.
//!
//! All matrices of a bucket share the message. A matrix that two factors would not shrink travels
//! whole in it. The algebra is `thinwire_codec`'s; here are the places.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Alternating, Finite, PowerSgd};
use thinwire_collective::Program;
use thinwire_schedule::Algorithm;
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::low_rank;

/// One matrix of a bucket.
#[derive(Debug)]
struct Matrix {
    /// Its elements in the bucket.
    elements: Range<usize>,
    /// The factor whose turn it is not; none if it travels whole.
    factor: Option<Alternating>,
}

/// The state of a bucket's factors, and the programs that carry its message.
#[derive(Debug)]
pub(crate) struct Turns {
    matrices: Vec<Matrix>,
    algorithm: Algorithm,
    world: World,
    /// By length of the message: it is another one in every other step.
    programs: Vec<Arc<Program>>,
}

impl Turns {
    /// Fresh factors, the same on all ranks, for matrices of `shapes` at their elements.
    pub(crate) fn new(
        codec: PowerSgd,
        matrices: &[(Range<usize>, (usize, usize))],
        algorithm: Algorithm,
        world: World,
        key: Key,
    ) -> Turns {
        let matrices = matrices.iter().enumerate().map(|(index, (elements, (rows, columns)))| {
            let key = Key { step: index as u64, ..key };
            let compresses = codec.compresses(*rows, *columns);
            let factor = compresses.then(|| codec.alternating(*rows, *columns, key));
            Matrix { elements: elements.clone(), factor }
        });
        Turns { matrices: matrices.collect(), algorithm, world, programs: Vec::new() }
    }

    /// The program of this step.
    pub(crate) fn program(&mut self) -> Arc<Program> {
        let length = self.matrices.iter().map(Matrix::message_len).sum();
        if let Some(program) = self.programs.iter().find(|program| program.elements() == length) {
            return Arc::clone(program);
        }
        let program = low_rank::program(length, self.algorithm, self.world);
        self.programs.push(Arc::clone(&program));
        program
    }

    /// The message of `values + residual`; what it does not say is left in `values` as the new
    /// residual. A message that is not finite has a NaN, so that all ranks see it.
    pub(crate) fn project(&self, values: &mut [f32], residual: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; self.matrices.iter().map(Matrix::message_len).sum()];
        let mut rest = all.as_mut_slice();
        for matrix in &self.matrices {
            let (message, after) = rest.split_at_mut(matrix.message_len());
            rest = after;
            let values = &mut values[matrix.elements.clone()];
            let residual = &residual[matrix.elements.clone()];
            match &matrix.factor {
                Some(factor) if factor.project(values, residual, message) == Finite::Yes => {
                    factor.subtract(message, values);
                }
                Some(_) => message[0] = f32::NAN,
                None => {
                    thinwire_codec::kernel::add(values, residual);
                    message.copy_from_slice(values);
                    values.fill(0.0);
                }
            }
        }
        all
    }

    /// Turns `output` into the sum over ranks, of which `sum` is that of the messages, and gives the
    /// turn to the other factors.
    pub(crate) fn commit(&mut self, sum: &[f32], output: &mut [f32]) {
        let mut rest = sum;
        for matrix in &mut self.matrices {
            let (message, after) = rest.split_at(matrix.message_len());
            rest = after;
            let output = &mut output[matrix.elements.clone()];
            match &mut matrix.factor {
                Some(factor) => {
                    factor.reconstruct(message, output);
                    factor.commit(message);
                }
                None => output.copy_from_slice(message),
            }
        }
    }

    /// What a checkpoint must hold of a matrix, if it has factors.
    pub(crate) fn factor(&self, matrix: usize) -> Option<Vec<f32>> {
        self.matrices[matrix].factor.as_ref().map(Alternating::state)
    }

    /// Goes on from a matrix's factors in a checkpoint.
    pub(crate) fn load(&mut self, matrix: usize, state: &[f32]) {
        if let Some(factor) = &mut self.matrices[matrix].factor {
            factor.resume(state);
        }
    }
}

impl Matrix {
    fn message_len(&self) -> usize {
        self.factor.as_ref().map_or(self.elements.len(), Alternating::message_len)
    }
}
