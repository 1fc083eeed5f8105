//! PowerSGD on a bucket: two all-reduces of factors.
//!
//! All matrices of a bucket share both messages. A matrix that two factors would not shrink travels
//! whole in the first message. The algebra is `thinwire_codec`'s; here are the places.

use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Factor, Finite, PowerSgd};
use thinwire_collective::Program;
use thinwire_schedule::{Algorithm, Shape, all_reduce};
use thinwire_wire::World;
use thinwire_wire::random::Key;

/// One matrix of a bucket.
#[derive(Debug)]
struct Matrix {
    /// Its elements in the bucket.
    elements: Range<usize>,
    /// Where its `p`, or the whole of it if it has no factor, is in the first message.
    first: Range<usize>,
    /// Where its `q` is in the second message.
    second: Range<usize>,
    /// The subspace; none if it travels whole.
    factor: Option<Factor>,
}

/// The state of a bucket's factors, and the programs that carry its two messages.
#[derive(Debug)]
pub(crate) struct LowRank {
    matrices: Vec<Matrix>,
    pub(crate) programs: [Arc<Program>; 2],
}

/// What a step leaves for its end.
#[derive(Debug)]
pub(crate) struct Factors {
    /// The sum over ranks of the first message, `p` orthonormal.
    pub(crate) first: Vec<f32>,
    /// This rank's `q`.
    pub(crate) mine: Vec<f32>,
    /// The sum over ranks of `q`.
    pub(crate) second: Vec<f32>,
}

impl LowRank {
    /// Fresh factors, the same on all ranks, for matrices of `shapes` at their elements.
    pub(crate) fn new(
        codec: PowerSgd,
        matrices: &[(Range<usize>, (usize, usize))],
        algorithm: Algorithm,
        world: World,
        key: Key,
    ) -> LowRank {
        let (mut first, mut second) = (0, 0);
        let place = |end: &mut usize, length: usize| {
            *end += length;
            *end - length..*end
        };
        let matrices = matrices.iter().enumerate().map(|(index, (elements, (rows, columns)))| {
            let key = Key { step: index as u64, ..key };
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
        let programs = [first, second].map(|length| program(length, algorithm, world));
        LowRank { matrices, programs }
    }

    /// `values += residual`, and the first message. A message that is not finite has a NaN, so that
    /// all ranks see it.
    pub(crate) fn project(&self, values: &mut [f32], residual: &[f32]) -> Vec<f32> {
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
                    thinwire_codec::kernel::add(values, residual);
                    message.copy_from_slice(values);
                }
            }
        }
        first
    }

    /// Orthonormalises the sum of the first messages; the second message.
    pub(crate) fn project_back(&self, values: &[f32], first: &mut [f32]) -> Vec<f32> {
        let mut second = vec![0.0; self.programs[1].elements()];
        for matrix in &self.matrices {
            if let Some(factor) = &matrix.factor {
                let (p, q) = (&mut first[matrix.first.clone()], &mut second[matrix.second.clone()]);
                factor.project_back(&values[matrix.elements.clone()], p, q);
            }
        }
        second
    }

    /// Turns `values` into the new residual, `output` into the sum over ranks, and goes on from the
    /// subspace that was found.
    pub(crate) fn commit(&mut self, factors: &Factors, values: &mut [f32], output: &mut [f32]) {
        for matrix in &mut self.matrices {
            let (values, output) =
                (&mut values[matrix.elements.clone()], &mut output[matrix.elements.clone()]);
            let first = &factors.first[matrix.first.clone()];
            match &mut matrix.factor {
                Some(factor) => {
                    factor.subtract(first, &factors.mine[matrix.second.clone()], values);
                    factor.reconstruct(first, &factors.second[matrix.second.clone()], output);
                    factor.commit(&factors.second[matrix.second.clone()]);
                }
                None => {
                    output.copy_from_slice(first);
                    values.fill(0.0);
                }
            }
        }
    }

    /// The subspace of a matrix, which a checkpoint must hold, if the matrix has one.
    pub(crate) fn factor(&self, matrix: usize) -> Option<&[f32]> {
        self.matrices[matrix].factor.as_ref().map(Factor::q)
    }

    /// Goes on from a matrix's subspace in a checkpoint.
    pub(crate) fn load(&mut self, matrix: usize, subspace: &[f32]) {
        if let Some(factor) = &mut self.matrices[matrix].factor {
            factor.commit(subspace);
        }
    }
}

/// What carries sums of so many f32.
pub(crate) fn program(length: usize, algorithm: Algorithm, world: World) -> Arc<Program> {
    let partitions = thinwire_collective::operations::partitions(length);
    let shape = Shape { length, block: 1, partitions };
    let schedule = all_reduce(algorithm, world, &shape);
    Arc::new(Program::new(schedule, length, thinwire_codec::raw()))
}
