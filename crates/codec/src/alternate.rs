//! PowerSGD with one message per step.
//!
//! Vogels et al. (see `powersgd`) improve both factors in every step, which takes two messages. Here
//! steps improve the two factors in turn. A step is then half a step of subspace iteration, with half of
//! the bytes, and one all-reduce instead of two.
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
//! Shapes: a matrix is `rows x columns`, row after row; a factor is `low_rank` vectors one after the
//! other.

use thinwire_wire::random::Key;

use crate::powersgd::{PowerSgd, Side, add_product, multiply, orthonormalise};
use crate::{Finite, kernel};

/// State of one matrix whose factors are improved in turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternating {
    rows: usize,
    columns: usize,
    low_rank: usize,
    basis: Vec<f32>,
    side: Side,
}

impl PowerSgd {
    /// Returns the state of one matrix whose factors are improved in turns. `key` must be the same on
    /// every rank.
    ///
    /// # Panics
    /// If the factors are no smaller than a `rows x columns` matrix.
    pub fn alternating(&self, rows: usize, columns: usize, key: Key) -> Alternating {
        let mut basis = self.factor(rows, columns, key).q().to_vec();
        orthonormalise(&mut basis, columns);
        Alternating { rows, columns, low_rank: self.low_rank(), basis, side: Side::Rows }
    }
}

impl Alternating {
    /// Returns the number of elements of the message of this step.
    pub fn message_len(&self) -> usize {
        let length = if self.side == Side::Rows { self.rows } else { self.columns };
        length * self.low_rank
    }

    /// Returns the basis that the next step projects on.
    pub fn basis(&self) -> (&[f32], Side) {
        (&self.basis, self.side)
    }

    /// Returns the state for a checkpoint: `low_rank` vectors of the length of a row, then `low_rank`
    /// vectors of the length of a column. The basis is on one of these two sides; the vectors of the
    /// other side are zeros.
    pub fn state(&self) -> Vec<f32> {
        let mut state = vec![0.0; self.low_rank * (self.rows + self.columns)];
        let place = match self.side {
            Side::Rows => 0..self.basis.len(),
            Side::Columns => state.len() - self.basis.len()..state.len(),
        };
        state[place].copy_from_slice(&self.basis);
        state
    }

    /// Resumes from the state of a checkpoint, as [`Alternating::state`] returned it.
    ///
    /// # Panics
    /// If the state is of another length.
    pub fn resume(&mut self, state: &[f32]) {
        assert_eq!(state.len(), self.low_rank * (self.rows + self.columns), "state of a matrix");
        let (rows, columns) = state.split_at(self.low_rank * self.columns);
        let turn = if rows.iter().any(|x| *x != 0.0) { Side::Rows } else { Side::Columns };
        let basis = if turn == Side::Rows { rows } else { columns };
        (self.basis, self.side) = (basis.to_vec(), turn);
    }

    /// Adds the residual to `values`, and writes the product of this sum and the basis to `message`.
    /// Returns whether the product is finite.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn project(&self, values: &mut [f32], residual: &[f32], message: &mut [f32]) -> Finite {
        self.check(values, message);
        kernel::add(values, residual);
        multiply(self.side, values, &self.basis, self.columns, message);
        Finite::from(kernel::is_finite(message))
    }

    /// Subtracts from `values` the matrix that the rank's own message represents. `values` is then the
    /// new residual.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn subtract(&self, message: &[f32], values: &mut [f32]) {
        self.add_product(message, -1.0, values);
    }

    /// Writes the matrix that the sum of all messages represents: the sum, over all ranks, of the rank's
    /// matrix minus its new residual.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn reconstruct(&self, message: &[f32], output: &mut [f32]) {
        output.fill(0.0);
        self.add_product(message, 1.0, output);
    }

    /// Takes the sum of messages as the basis of the next step. Do not call it for a skipped step.
    ///
    /// # Panics
    /// If the message is of another length.
    pub fn commit(&mut self, message: &[f32]) {
        assert_eq!(message.len(), self.message_len(), "message of a matrix");
        self.basis = message.to_vec();
        orthonormalise(&mut self.basis, message.len() / self.low_rank);
        self.side = if self.side == Side::Rows { Side::Columns } else { Side::Rows };
    }

    fn add_product(&self, message: &[f32], sign: f32, values: &mut [f32]) {
        self.check(values, message);
        let (p, q) = match self.side {
            Side::Rows => (message, self.basis.as_slice()),
            Side::Columns => (self.basis.as_slice(), message),
        };
        add_product(p, q, sign, self.columns, values);
    }

    fn check(&self, values: &[f32], message: &[f32]) {
        assert_eq!(values.len(), self.rows * self.columns, "values of a matrix");
        assert_eq!(message.len(), self.message_len(), "message of a matrix");
    }
}
