//! Table of trained rows: features of vertices of a graph that has no features.
//!
//! Every rank has the whole table. After each step, ranks exchange the gradients of the rows that their
//! batches used, and all of them update the same rows, so tables stay equal bit by bit. Law: the
//! gradient of a row is the sum over ranks, in rank order, so a step of several ranks equals a step of
//! one rank with all their seeds.

use thinwire_model::Part;
use thinwire_sync::Synchronizer;
use thinwire_update::{AdamOptions, Optimizer, Rows, Rule};
use thinwire_wire::random::Key;

use super::matrix::Matrix;
use crate::checkpoint::{Tensors, Wanted};
use crate::error::{Error, Kind};

/// Name of the values in files.
pub const NAME: &str = "features";
/// Random stream of initial values.
const INITIAL: u32 = 0x676e_6e01;

/// Trained row of every vertex, with the state of Adam for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    width: usize,
    learning_rate: f32,
    values: Vec<f32>,
    /// For each row, the running mean of its gradients, followed by the running mean of their squares.
    state: Vec<f32>,
    /// Number of updates of every row.
    updates: Vec<u32>,
}

/// Distribution of the initial values of trained rows: uniform from `-limit` to `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Initial {
    /// Largest absolute value; rows then have a squared length of 1 on average.
    pub limit: f32,
    /// Random stream of the values: `tensor` of their [`Key`].
    pub stream: u32,
}

impl Initial {
    /// Returns the distribution for rows of `width` numbers.
    pub fn of(width: usize) -> Initial {
        Initial { limit: (3.0 / width as f32).sqrt(), stream: INITIAL }
    }
}

/// Gradients of rows. The rows are ascending, and each occurs once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowGradients {
    rows: Vec<u32>,
    values: Vec<f32>,
}

impl Table {
    /// Creates a table with the initial values of [`Initial`].
    pub fn new(vertices: u32, width: usize, learning_rate: f32, seed: u64) -> Table {
        let elements = vertices as usize * width;
        let Initial { limit, stream } = Initial::of(width);
        let key = Key { seed, step: 0, tensor: stream };
        let value = |element| limit * (2.0 * key.uniform(element) - 1.0);
        Table {
            width,
            learning_rate,
            values: (0..elements as u64).map(value).collect(),
            state: vec![0.0; 2 * elements],
            updates: vec![0; vertices as usize],
        }
    }

    /// Returns the values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the rows of vertices.
    pub fn read(&self, vertices: &[u32]) -> Matrix {
        let row = |vertex: &u32| &self.values[*vertex as usize * self.width..][..self.width];
        Matrix::new(self.width, vertices.iter().flat_map(row).copied().collect())
    }

    /// Updates rows by lazy Adam; changes nothing if a gradient is not finite.
    pub fn update(&mut self, gradients: &RowGradients) {
        if gradients.values.iter().all(|value| value.is_finite()) {
            let rule = Rule::LazyAdam(AdamOptions::default());
            let optimizer = Optimizer { rule, learning_rate: self.learning_rate };
            let Table { width, values, state, updates, .. } = self;
            let mut rows = Rows { width: *width, values, state, updates };
            optimizer.update_rows(&mut rows, &gradients.rows, &gradients.values);
        }
    }

    /// Returns everything that a checkpoint needs.
    pub fn tensors(&self) -> Tensors {
        let [vertices, width] = [self.updates.len(), self.width];
        let halves = |first: usize| {
            let rows = self.state.chunks_exact(2 * width);
            rows.flat_map(|row| &row[first..first + width]).copied().collect()
        };
        let whole =
            |name: &str, values: Vec<f32>| (name.to_owned(), (vec![vertices, width], values));
        let updates = self.updates.iter().map(|updates| *updates as f32).collect();
        Tensors::from([
            whole(NAME, self.values.clone()),
            whole(&format!("{NAME}.mean"), halves(0)),
            whole(&format!("{NAME}.square"), halves(width)),
            (format!("{NAME}.updates"), (vec![vertices], updates)),
        ])
    }

    /// Returns the parts to find in a checkpoint, for [`Table::restore`].
    pub fn wanted(&self) -> Vec<Wanted> {
        let [rows, columns] =
            [self.updates.len(), self.width].map(|length| Part { start: 0, length });
        let whole = |name: String| Wanted::new(name, vec![rows, columns]);
        vec![
            whole(NAME.to_owned()),
            whole(format!("{NAME}.mean")),
            whole(format!("{NAME}.square")),
            Wanted::new(format!("{NAME}.updates"), vec![rows]),
        ]
    }

    /// Continues from the parts that were found.
    ///
    /// # Panics
    /// If they belong to another table.
    pub fn restore(&mut self, found: Vec<Wanted>) {
        let [values, means, squares, updates] =
            found.try_into().expect("as many tensors as were wanted");
        self.values = values.values;
        let rows =
            means.values.chunks_exact(self.width).zip(squares.values.chunks_exact(self.width));
        self.state = rows.flat_map(|(mean, square)| mean.iter().chain(square)).copied().collect();
        self.updates = updates.values.iter().map(|updates| *updates as u32).collect();
    }
}

impl RowGradients {
    /// Sums the gradients of the rows that the batches of all ranks used; all ranks call this. Also returns
    /// the number of bytes that this rank sent.
    ///
    /// # Errors
    /// If a peer is lost, or has rows of another table.
    pub fn gather(
        sync: &Synchronizer,
        table: &Table,
        vertices: &[u32],
        gradient: &Matrix,
    ) -> Result<(RowGradients, u64), Error> {
        let own = pack(vertices, gradient);
        let peers = sync.world().size() as u64 - 1;
        let all = sync.gather_bytes(own)?;
        let longest = all.iter().map(Vec::len).max().unwrap_or(0) as u64;
        Ok((RowGradients::sum(&all, table)?, peers * longest))
    }

    /// Sums the packed rows of all ranks.
    fn sum(ranks: &[Vec<u8>], table: &Table) -> Result<RowGradients, Error> {
        let row_bytes = size_of::<u32>() * (1 + table.width);
        let mut rows = Vec::new();
        for (rank, packed) in ranks.iter().enumerate() {
            for row in packed.chunks(row_bytes) {
                let (vertex, gradient) = row.split_first_chunk().unwrap_or((&[0xff; 4], &[]));
                let vertex = u32::from_le_bytes(*vertex);
                if row.len() != row_bytes || vertex as usize >= table.updates.len() {
                    let (bytes, vertices) = (packed.len(), table.updates.len());
                    return Err(Error::new(
                        Kind::Exchange,
                        format!(
                            "rank {rank} sent {bytes} bytes of row gradients with vertex {vertex}, expected \
                         rows of {row_bytes} bytes of 0..{vertices}"
                        ),
                    ));
                }
                rows.push((vertex, gradient));
            }
        }
        // Stable, so that ranks stay in their order.
        rows.sort_by_key(|(vertex, _)| *vertex);
        let mut sums = RowGradients::default();
        for of_vertex in rows.chunk_by(|one, other| one.0 == other.0) {
            let start = sums.values.len();
            sums.rows.push(of_vertex[0].0);
            sums.values.resize(start + table.width, 0.0);
            for (_, gradient) in of_vertex {
                let words = gradient.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word));
                sums.values[start..].iter_mut().zip(words).for_each(|(sum, value)| *sum += value);
            }
        }
        Ok(sums)
    }
}

/// Returns rows as bytes: for each row, the vertex and its gradient, little-endian.
fn pack(vertices: &[u32], gradient: &Matrix) -> Vec<u8> {
    let mut packed = Vec::with_capacity(4 * (vertices.len() + gradient.values().len()));
    for (row, vertex) in vertices.iter().enumerate() {
        packed.extend(vertex.to_le_bytes());
        packed.extend(gradient.row(row).iter().flat_map(|value| value.to_le_bytes()));
    }
    packed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sum_over_ranks_is_that_of_their_rows(
            ranks in prop::collection::vec(prop::collection::btree_map(0_u32..5, -4_i8..4, 0..5), 1..4)
        ) {
            let (mut packed, mut expected) = (Vec::new(), BTreeMap::new());
            for rank in &ranks {
                let vertices: Vec<u32> = rank.keys().copied().collect();
                let values = rank.values().flat_map(|value| [f32::from(*value), 1.0]).collect();
                packed.push(pack(&vertices, &Matrix::new(2, values)));
                for (vertex, value) in rank {
                    let sum = expected.entry(*vertex).or_insert([0.0, 0.0]);
                    *sum = [sum[0] + f32::from(*value), sum[1] + 1.0];
                }
            }
            let table = Table::new(5, 2, 0.1, 7);
            let sums = RowGradients::sum(&packed, &table).unwrap();
            prop_assert_eq!(sums.rows, expected.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(sums.values, expected.into_values().flatten().collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_of_another_table_are_refused() {
        let table = Table::new(5, 2, 0.1, 7);
        let message = |bytes: Vec<u8>| {
            RowGradients::sum(&[Vec::new(), bytes], &table).unwrap_err().to_string()
        };
        let expected = "expected rows of 12 bytes of 0..5";
        let beyond = pack(&[5], &Matrix::new(2, vec![0.0; 2]));
        let with = "rank 1 sent 12 bytes of row gradients with vertex 5";
        assert_eq!(message(beyond), format!("{with}, {expected}"));
        let narrow = pack(&[1], &Matrix::new(1, vec![0.0]));
        let with = "rank 1 sent 8 bytes of row gradients with vertex 1";
        assert_eq!(message(narrow), format!("{with}, {expected}"));
        assert!(message(vec![7]).starts_with("rank 1 sent 1 bytes"));
    }

    #[test]
    fn a_table_goes_on_from_its_tensors() {
        let mut table = Table::new(3, 2, 0.1, 7);
        let gradients = RowGradients { rows: vec![0, 2], values: vec![1.0, -2.0, 0.5, 3.0] };
        table.update(&gradients);
        let mut wanted = table.wanted();
        for part in &mut wanted {
            part.values = table.tensors().remove(&part.name).unwrap().1;
        }
        let mut other = Table::new(3, 2, 0.1, 8);
        other.restore(wanted);
        assert_eq!(other, table);
        table.update(&RowGradients { values: vec![f32::NAN; 4], ..gradients });
        assert_eq!(other, table);
    }
}
