//! PowerSGD: a matrix as the product of two thin ones.
//!
//! Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
//! (NeurIPS 2019, algorithm 1): one step of subspace iteration, continued from the last training
//! step. Both messages are sums of f32 over ranks, so any all-reduce carries them.
//!
//! ```text
//! M += residual;  P = M Q            project        all-reduce P
//! P = orthonormal(P);  Q = Mᵀ P      project_back
//! M -= P Qᵀ (the new residual)       subtract       all-reduce Q
//! gradient = P Qᵀ                    reconstruct
//! the next step starts from Q        commit
//! ```
//!
//! Laws: `PᵀP = 1`; a matrix of at most this low rank is exact; the residual is never longer than
//! the matrix; over all ranks, gradient plus residuals is the sum of the matrices.
//!
//! Shapes: a matrix is `rows x columns`, row after row. `p` is `low_rank` vectors of `rows`
//! numbers one after the other, `q` is `low_rank` vectors of `columns` numbers.

use std::fmt;

use thinwire_wire::random::{Key, unit};

use crate::{Error, Finite, kernel};

/// Largest low rank.
const LOW_RANK_MAX: usize = 256;

/// Compressor of matrices to `low_rank` columns. The state of a matrix is a `Factor`, or an `Alternating`
/// if the two factors are improved in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSgd {
    low_rank: usize,
    rounds: Rounds,
}

/// Messages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Both factors are sent, one after the other.
    Two,
    /// One factor is sent, and the other in the next step.
    One,
}

/// Space that the basis is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Basis vectors are as long as a row, message vectors as long as a column.
    Rows,
    /// Basis vectors are as long as a column, message vectors as long as a row.
    Columns,
}

/// Reads the parameter in a name.
pub(crate) fn parse(parameter: Option<&str>) -> Result<PowerSgd, Error> {
    let (low_rank, rounds) = match parameter.and_then(|found| found.split_once(':')) {
        Some((low_rank, "alternate")) => (Some(low_rank), Rounds::One),
        Some((_, other)) => {
            return Err(Error::parameter("powersgd factors", Some(other), "'alternate'"));
        }
        None => (parameter, Rounds::Two),
    };
    match low_rank.and_then(|found| found.parse().ok()) {
        Some(low_rank @ 1..=LOW_RANK_MAX) => Ok(PowerSgd { low_rank, rounds }),
        _ => Err(Error::parameter("powersgd low rank", low_rank, &format!("1..={LOW_RANK_MAX}"))),
    }
}

impl fmt::Display for PowerSgd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turns = if self.rounds == Rounds::One { ":alternate" } else { "" };
        write!(f, "powersgd:{}{turns}", self.low_rank)
    }
}

impl PowerSgd {
    /// Returns the compressor to `low_rank` columns in two rounds.
    ///
    /// # Panics
    /// If `low_rank` is not in `1..=256`.
    pub fn new(low_rank: usize) -> PowerSgd {
        assert!((1..=LOW_RANK_MAX).contains(&low_rank), "low rank {low_rank}");
        PowerSgd { low_rank, rounds: Rounds::Two }
    }

    /// Returns the messages of a step.
    pub fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// Returns the number of columns of the factors.
    pub fn low_rank(&self) -> usize {
        self.low_rank
    }

    /// Returns whether the two factors of a `rows x columns` matrix are smaller than the matrix.
    pub fn compresses(&self, rows: usize, columns: usize) -> bool {
        (rows + columns) * self.low_rank < rows * columns
    }

    /// Returns the state of one matrix. `key` must be the same on every rank.
    ///
    /// # Panics
    /// If the factors are no smaller than a `rows x columns` matrix.
    pub fn factor(&self, rows: usize, columns: usize, key: Key) -> Factor {
        assert!(self.compresses(rows, columns), "{self} does not compress {rows} x {columns}");
        let q = (0..columns * self.low_rank).map(|i| key.normal(i as u64)).collect();
        Factor { rows, columns, low_rank: self.low_rank, q }
    }
}

/// State of one matrix between steps: the subspace that the last step found.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    rows: usize,
    columns: usize,
    low_rank: usize,
    q: Vec<f32>,
}

impl Factor {
    /// Returns the number of elements of `p`.
    pub fn p_len(&self) -> usize {
        self.rows * self.low_rank
    }

    /// Returns the number of elements of `q`.
    pub fn q_len(&self) -> usize {
        self.columns * self.low_rank
    }

    /// Returns the state for a checkpoint: the factor that the next step starts from.
    pub fn q(&self) -> &[f32] {
        &self.q
    }

    /// Adds the residual to `values`, and writes `p = values Q`; returns whether `p` is finite. Each
    /// vector of `p` is multiplied by a power of two, the same on all ranks; this is allowed because only
    /// the directions of the vectors matter.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn project(&self, values: &mut [f32], residual: &[f32], p: &mut [f32]) -> Finite {
        self.check(values, p, &self.q);
        project(values, residual, &self.q, p, self.rows)
    }

    /// Orthonormalises `p`, the sum over ranks, and writes the rank's own `q = valuesᵀ p`.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn project_back(&self, values: &[f32], p: &mut [f32], q: &mut [f32]) {
        self.check(values, p, q);
        project_back(values, p, q, self.rows);
    }

    /// Subtracts `p qᵀ` from `values`. With the rank's own `q`, the result is the new residual.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn subtract(&self, p: &[f32], q: &[f32], values: &mut [f32]) {
        self.check(values, p, q);
        subtract(p, q, values, self.rows);
    }

    /// Writes `p qᵀ` to `output`. With the sum of `q` over ranks, the result is the sum of all ranks'
    /// matrices.
    ///
    /// # Panics
    /// If the length of a slice does not fit its shape.
    pub fn reconstruct(&self, p: &[f32], q: &[f32], output: &mut [f32]) {
        self.check(output, p, q);
        reconstruct(p, q, output, self.rows);
    }

    /// Starts the next step from `q`, the sum over ranks. Do not call it for a skipped step.
    ///
    /// # Panics
    /// If `q` is of another length.
    pub fn commit(&mut self, q: &[f32]) {
        self.q.copy_from_slice(q);
    }

    fn check(&self, values: &[f32], p: &[f32], q: &[f32]) {
        assert_eq!(values.len(), self.rows * self.columns, "values of a matrix");
        assert_eq!(p.len(), self.p_len(), "p of a matrix");
        assert_eq!(q.len(), self.q_len(), "q of a matrix");
    }
}

/// Does [`Factor::project`] for a matrix of `rows` rows from the subspace `q`.
///
/// # Panics
/// If the residual is of another length.
pub fn project(
    values: &mut [f32],
    residual: &[f32],
    q: &[f32],
    p: &mut [f32],
    rows: usize,
) -> Finite {
    assert_eq!(residual.len(), values.len(), "residual");
    let columns = values.len() / rows;
    let q = balanced(q, columns);
    let sums = values.chunks_exact_mut(columns).zip(residual.chunks_exact(columns));
    // Row by row, so that the sum is still in the cache.
    for (row, (values, residual)) in sums.enumerate() {
        kernel::add(values, residual);
        for (p, q) in p.chunks_exact_mut(rows).zip(q.chunks_exact(columns)) {
            p[row] = kernel::dot(values, q);
        }
    }
    // A row that is not finite has no finite product, not even with zero.
    Finite::from(kernel::is_finite(p))
}

/// Does [`Factor::project_back`] for a matrix of `rows` rows.
pub fn project_back(values: &[f32], p: &mut [f32], q: &mut [f32], rows: usize) {
    orthonormalise(p, rows);
    multiply(Side::Columns, values, p, values.len() / rows, q);
}

/// Does [`Factor::subtract`] for a matrix of `rows` rows.
pub fn subtract(p: &[f32], q: &[f32], values: &mut [f32], rows: usize) {
    let columns = values.len() / rows;
    add_product(p, q, -1.0, columns, values);
}

/// Does [`Factor::reconstruct`] for a matrix of `rows` rows.
pub fn reconstruct(p: &[f32], q: &[f32], output: &mut [f32], rows: usize) {
    output.fill(0.0);
    let columns = output.len() / rows;
    add_product(p, q, 1.0, columns, output);
}

/// Returns the vectors, each scaled so that its largest magnitude is at least 1 and below 2. The vectors
/// that a step has found are as large as its gradients: without scaling, products with them would be as
/// large as squares of gradients, and would overflow or vanish long before the gradients do.
fn balanced(vectors: &[f32], length: usize) -> Vec<f32> {
    let mut balanced = vectors.to_vec();
    balanced.chunks_exact_mut(length).for_each(balance);
    balanced
}

/// Multiplies a vector by a power of two that brings its largest magnitude to 1 or more and below 2, unless
/// it is zero or subnormal.
fn balance(vector: &mut [f32]) {
    let exponent = (kernel::max_magnitude(vector) >> 23).clamp(1, 253);
    let factor = f32::from_bits((254 - exponent) << 23);
    vector.iter_mut().for_each(|x| *x *= factor);
}

/// Number of rows whose products are summed in order. If there are more rows, the sums of such blocks are
/// added in order; a device has a group of threads for each block.
const BLOCK_ROWS: usize = 128;

/// Writes the product of a matrix, or of its transpose for [`Side::Columns`], and the vectors of `basis`.
pub(crate) fn multiply(
    side: Side,
    values: &[f32],
    basis: &[f32],
    columns: usize,
    product: &mut [f32],
) {
    let rows = values.len() / columns;
    product.fill(0.0);
    if side == Side::Rows {
        for (row, values) in values.chunks_exact(columns).enumerate() {
            for (to, basis) in product.chunks_exact_mut(rows).zip(basis.chunks_exact(columns)) {
                to[row] = kernel::dot(values, basis);
            }
        }
        return;
    }
    let add_block = |first: usize, values: &[f32], product: &mut [f32]| {
        for (row, values) in (first..).zip(values.chunks_exact(columns)) {
            for (to, basis) in product.chunks_exact_mut(columns).zip(basis.chunks_exact(rows)) {
                kernel::add_scaled(to, values, basis[row]);
            }
        }
    };
    let mut blocks = values.chunks(BLOCK_ROWS * columns).zip((0..).step_by(BLOCK_ROWS));
    if let Some((values, first)) = blocks.next() {
        add_block(first, values, product);
    }
    let mut of_block = Vec::new();
    for (values, first) in blocks {
        of_block.clear();
        of_block.resize(product.len(), 0.0);
        add_block(first, values, &mut of_block);
        kernel::add(product, &of_block);
    }
}

/// Adds `sign p qᵀ` to the rows of `columns` numbers in `values`.
pub(crate) fn add_product(p: &[f32], q: &[f32], sign: f32, columns: usize, values: &mut [f32]) {
    let rows = values.len() / columns;
    for (row, values) in values.chunks_exact_mut(columns).enumerate() {
        for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact(columns)) {
            kernel::add_scaled(values, q, sign * p[row]);
        }
    }
}

/// Makes the vectors of `length` numbers in `p` orthonormal.
///
/// The modified Gram-Schmidt process is done twice, after which angles are right to the last digits.
/// A vector that depends on earlier ones is replaced by a pseudo-random one, equal on all ranks, so
/// that a subspace is there when the rank of the matrix grows.
pub(crate) fn orthonormalise(p: &mut [f32], length: usize) {
    for index in 0..p.len() / length {
        let (before, rest) = p.split_at_mut(index * length);
        let vector = &mut rest[..length];
        if !normalise(vector) {
            vector.fill(0.0);
        }
        for attempt in 0.. {
            if project_out(before, vector) {
                break;
            }
            assert!(attempt < 64, "more vectors than dimensions");
            let key = Key { seed: attempt, step: index as u64, tensor: length as u32 };
            for (element, x) in vector.iter_mut().enumerate() {
                *x = unit(key.word(element as u64)) - 0.5;
            }
            normalise(vector);
        }
    }
}

/// Subtracts the parts along `before` from a unit vector; returns false if next to nothing is left.
fn project_out(before: &[f32], vector: &mut [f32]) -> bool {
    for _ in 0..2 {
        for unit in before.chunks_exact(vector.len()) {
            let along = kernel::dot(unit, vector);
            kernel::add_scaled(vector, unit, -along);
        }
        if kernel::dot(vector, vector) < INDEPENDENT * INDEPENDENT || !normalise(vector) {
            return false;
        }
    }
    true
}

/// Length that must be left of a unit vector, well above the rounding errors of a dependent one.
const INDEPENDENT: f32 = 1e-5;

/// Scales a vector to length 1; returns false if it is zero or not finite.
fn normalise(vector: &mut [f32]) -> bool {
    let max = f32::from_bits(kernel::max_magnitude(vector));
    if max == 0.0 || !max.is_finite() {
        return false;
    }
    // By a power of two first, so that squares neither overflow nor vanish.
    let exponent = (max.to_bits() >> 23).clamp(27, 227);
    let factor = f32::from_bits((254 - exponent) << 23);
    vector.iter_mut().for_each(|x| *x *= factor);
    let norm = kernel::dot(vector, vector).sqrt();
    vector.iter_mut().for_each(|x| *x /= norm);
    true
}
