//! PowerSGD with one message per step.
//!
//! Vogels et al. (see `powersgd`) improve both factors in every step, which takes two messages. Here
//! a step improves one of them, the next step the other: half of a step of subspace iteration, for
//! half of the bytes and one all-reduce.
//!
//! ```text
//! M += residual;  message = M B, or Mᵀ B in every other step     project    all-reduce the message
//! M -= message Bᵀ, or its transpose (the new residual)           subtract
//! gradient = sum of messages Bᵀ, or its transpose                reconstruct
//! B = orthonormal(sum of messages), and the other side is next   commit
//! ```
//!
//! Laws: the basis `B` is orthonormal and the same on all ranks; the residual is never longer than
//! the matrix; over all ranks, gradient plus residuals is the sum of the matrices.
//!
//! Shapes are those of `powersgd`: a factor is `low_rank` vectors one after the other.

use thinwire_wire::random::Key;

use crate::powersgd::{PowerSgd, orthonormalise};
use crate::{Finite, kernel};

/// What one matrix needs between steps that take turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternating {
    rows: usize,
    columns: usize,
    low_rank: usize,
    basis: Vec<f32>,
    side: Side,
}

/// Whose space the basis is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Vectors as long as a row; the message has vectors as long as a column.
    Rows,
    /// The other way round.
    Columns,
}

impl PowerSgd {
    /// The state for one matrix whose factors take turns. `key` must be the same on every rank.
    ///
    /// # Panics
    /// If this does not compress a `rows x columns` matrix.
    pub fn alternating(&self, rows: usize, columns: usize, key: Key) -> Alternating {
        let mut basis = self.factor(rows, columns, key).q().to_vec();
        orthonormalise(&mut basis, columns);
        Alternating { rows, columns, low_rank: self.low_rank(), basis, side: Side::Rows }
    }
}

impl Alternating {
    /// The length of this step's message.
    pub fn message_len(&self) -> usize {
        let length = if self.side == Side::Rows { self.rows } else { self.columns };
        length * self.low_rank
    }

    /// Where the next step starts.
    pub fn basis(&self) -> (&[f32], Side) {
        (&self.basis, self.side)
    }

    /// What a checkpoint must hold: `low_rank` vectors as long as a row, then as many as long as a
    /// column. Those of the side that the basis is not in are zeros.
    pub fn state(&self) -> Vec<f32> {
        let mut state = vec![0.0; self.low_rank * (self.rows + self.columns)];
        let place = match self.side {
            Side::Rows => 0..self.basis.len(),
            Side::Columns => state.len() - self.basis.len()..state.len(),
        };
        state[place].copy_from_slice(&self.basis);
        state
    }

    /// Goes on from the state of a checkpoint, as long as [`Alternating::state`] is.
    pub fn resume(&mut self, state: &[f32]) {
        assert_eq!(state.len(), self.low_rank * (self.rows + self.columns), "state of a matrix");
        let (rows, columns) = state.split_at(self.low_rank * self.columns);
        let turn = if rows.iter().any(|x| *x != 0.0) { Side::Rows } else { Side::Columns };
        let basis = if turn == Side::Rows { rows } else { columns };
        (self.basis, self.side) = (basis.to_vec(), turn);
    }

    /// `values += residual`, and their product with the basis; says whether all of that is finite.
    ///
    /// # Panics
    /// Here as below, if a slice has another length than its shape says.
    pub fn project(&self, values: &mut [f32], residual: &[f32], message: &mut [f32]) -> Finite {
        self.check(values, message);
        kernel::add(values, residual);
        message.fill(0.0);
        for (row, values) in values.chunks_exact(self.columns).enumerate() {
            for (to, basis) in self.pairs(message) {
                match self.side {
                    Side::Rows => to[row] = kernel::dot(values, basis),
                    Side::Columns => kernel::add_scaled(to, values, basis[row]),
                }
            }
        }
        Finite::when(kernel::is_finite(message))
    }

    /// Takes what this rank's own message says out of `values`: what is left is its new residual.
    pub fn subtract(&self, message: &[f32], values: &mut [f32]) {
        self.add_product(message, -1.0, values);
    }

    /// What the sum of all ranks' messages says: the sum of their matrices, but for residuals.
    pub fn reconstruct(&self, message: &[f32], output: &mut [f32]) {
        output.fill(0.0);
        self.add_product(message, 1.0, output);
    }

    /// Starts the next step from the sum of messages. Not to be called for a skipped step.
    pub fn commit(&mut self, message: &[f32]) {
        assert_eq!(message.len(), self.message_len(), "message of a matrix");
        self.basis = message.to_vec();
        orthonormalise(&mut self.basis, message.len() / self.low_rank);
        self.side = if self.side == Side::Rows { Side::Columns } else { Side::Rows };
    }

    fn add_product(&self, message: &[f32], sign: f32, values: &mut [f32]) {
        self.check(values, message);
        for (row, values) in values.chunks_exact_mut(self.columns).enumerate() {
            let lengths = (message.len() / self.low_rank, self.basis.len() / self.low_rank);
            let vectors = message.chunks_exact(lengths.0).zip(self.basis.chunks_exact(lengths.1));
            for (message, basis) in vectors {
                match self.side {
                    Side::Rows => kernel::add_scaled(values, basis, sign * message[row]),
                    Side::Columns => kernel::add_scaled(values, message, sign * basis[row]),
                }
            }
        }
    }

    /// Vectors of the message with those of the basis.
    fn pairs<'a>(
        &'a self,
        message: &'a mut [f32],
    ) -> impl Iterator<Item = (&'a mut [f32], &'a [f32])> {
        let (length, other) = (message.len() / self.low_rank, self.basis.len() / self.low_rank);
        message.chunks_exact_mut(length).zip(self.basis.chunks_exact(other))
    }

    fn check(&self, values: &[f32], message: &[f32]) {
        assert_eq!(values.len(), self.rows * self.columns, "values of a matrix");
        assert_eq!(message.len(), self.message_len(), "message of a matrix");
    }
}
