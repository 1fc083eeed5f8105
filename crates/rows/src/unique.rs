//! De-duplication: the unique rows of a batch in ascending order, and the place of every id among them.
//!
//! Laws: `rows()[places()[i]] == ids[i]`; the rows ascend strictly; a sum adds the gradients of a row in the
//! order of the ids, so its bits are deterministic.

use crate::error::{Error, check_length};
use crate::mix::mix;
use crate::sort::Sorter;

/// Empty cell of the hash table.
const EMPTY: u32 = u32::MAX;

/// Unique rows of a batch. Buffers are reused, so batches of similar size need no new memory.
#[derive(Clone, Debug, Default)]
pub struct Unique {
    rows: Vec<u64>,
    places: Vec<u32>,
    /// Position of the first id of each row.
    firsts: Vec<u32>,
    /// Hash table of row indices.
    cells: Vec<u32>,
    sorter: Sorter,
}

impl Unique {
    /// Creates an empty set of rows.
    pub fn new() -> Unique {
        Unique::default()
    }

    /// Replaces the rows by those of a batch of ids, in any order and with repetitions.
    ///
    /// # Panics
    /// If there are more than 2^31 ids.
    pub fn take(&mut self, ids: &[u64]) {
        assert!(ids.len() <= 1 << 31, "a batch of at most 2^31 ids");
        self.collect(ids);
        let ranks = self.sorter.sort(&mut self.rows, &mut self.firsts);
        self.places.iter_mut().for_each(|place| *place = ranks[*place as usize]);
    }

    /// Returns the rows, ascending.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Returns for each id the place of its row in [`rows`](Unique::rows).
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Copies the values of the rows, `width` bytes each, to the places of their ids in `out`.
    ///
    /// # Errors
    /// If a length does not fit.
    pub fn scatter(&self, values: &[u8], width: usize, out: &mut [u8]) -> Result<(), Error> {
        check_length("values", values.len(), self.rows.len(), width)?;
        check_length("output", out.len(), self.places.len(), width)?;
        for (place, out) in self.places.iter().zip(out.chunks_exact_mut(width.max(1))) {
            out.copy_from_slice(&values[*place as usize * width..][..width]);
        }
        Ok(())
    }

    /// Sums the gradients of ids with the same row, `columns` values each, into `sums`.
    ///
    /// # Errors
    /// If the length does not fit.
    pub fn sum(&self, gradients: &[f32], columns: usize, sums: &mut Vec<f32>) -> Result<(), Error> {
        let found = gradients.len();
        if self.places.len().checked_mul(columns) != Some(found) {
            let ids = self.places.len();
            let context = format!("gradients of {found} values, expected {ids} rows of {columns}");
            return Err(Error::length(context));
        }
        sums.clear();
        for first in &self.firsts {
            sums.extend_from_slice(&gradients[*first as usize * columns..][..columns]);
        }
        for (position, place) in self.places.iter().enumerate() {
            let place = *place as usize;
            if self.firsts[place] as usize != position {
                let sum = sums[place * columns..][..columns].iter_mut();
                let gradient = &gradients[position * columns..][..columns];
                sum.zip(gradient).for_each(|(sum, value)| *sum += value);
            }
        }
        Ok(())
    }

    /// Numbers the rows by their first id.
    fn collect(&mut self, ids: &[u64]) {
        self.rows.clear();
        self.firsts.clear();
        self.places.clear();
        self.cells.clear();
        let bits = (2 * ids.len()).next_power_of_two().trailing_zeros().max(1);
        self.cells.resize(1 << bits, EMPTY);
        for (position, id) in (0..).zip(ids) {
            let place = self.number(*id, position, bits);
            self.places.push(place);
        }
    }

    /// Returns the index of an id's row, adding it if the id is new.
    fn number(&mut self, id: u64, position: u32, bits: u32) -> u32 {
        let mask = self.cells.len() - 1;
        let mut at = (mix(id) >> (64 - bits)) as usize;
        loop {
            match self.cells[at] {
                EMPTY => {
                    let number = self.rows.len() as u32;
                    self.cells[at] = number;
                    self.rows.push(id);
                    self.firsts.push(position);
                    return number;
                }
                number if self.rows[number as usize] == id => return number,
                _ => at = (at + 1) & mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use thinwire_wire::random::Key;

    use super::*;

    /// Returns gradients whose sums depend on the order of addition.
    fn gradients(count: usize) -> Vec<f32> {
        let key = Key { seed: 7, step: 0, tensor: 0 };
        (0..count as u64).map(|at| key.normal(at) * 10_f32.powi((at % 7) as i32)).collect()
    }

    fn check(unique: &mut Unique, ids: &[u64]) {
        unique.take(ids);
        let rows: Vec<u64> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        assert_eq!(unique.rows(), rows);
        let back: Vec<u64> = unique.places().iter().map(|place| rows[*place as usize]).collect();
        assert_eq!(back, ids);

        let bytes =
            |rows: &[u64]| rows.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<u8>>();
        let mut out = vec![0; 8 * ids.len()];
        unique.scatter(&bytes(&rows), 8, &mut out).unwrap();
        assert_eq!(out, bytes(ids));

        let gradients = gradients(2 * ids.len());
        let mut expected: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (id, gradient) in ids.iter().zip(gradients.chunks(2)) {
            match expected.get_mut(id) {
                Some(sum) => sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value),
                None => drop(expected.insert(*id, gradient.to_vec())),
            }
        }
        let mut sums = vec![7.0];
        unique.sum(&gradients, 2, &mut sums).unwrap();
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(sums), bits(expected.into_values().flatten().collect()));
    }

    proptest! {
        #[test]
        fn each_row_is_once_and_every_id_finds_it(
            batches in prop::collection::vec(prop::collection::vec(0_u64..40, 0..60), 1..4),
            shift in 0_u32..58
        ) {
            let mut unique = Unique::new();
            for batch in batches {
                check(&mut unique, &batch.iter().map(|id| id << shift).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn large_batches_are_as_small_ones() {
        let mut unique = Unique::new();
        let key = Key { seed: 1, step: 2, tensor: 3 };
        for mask in [u64::MAX, u64::from(u32::MAX), 0xFFF, 0xFF << 56 | 0xFF0, 0] {
            let wide = |at| u64::from(key.word(at)) << 32 | u64::from(key.word(at + 1));
            check(&mut unique, &(0..5000).map(|at| wide(at) & mask).collect::<Vec<_>>());
        }
        check(&mut unique, &[u64::MAX, 0, u64::MAX]);
    }

    #[test]
    fn buffers_are_kept() {
        let mut unique = Unique::new();
        let mut batch = |step| {
            let key = Key { seed: 1, step, tensor: 3 };
            unique.take(&(0..3000).map(|at| u64::from(key.word(at))).collect::<Vec<_>>());
            let Unique { rows, places, firsts, cells, sorter } = &unique;
            let buffers = [rows.capacity(), places.capacity(), firsts.capacity(), cells.capacity()];
            (buffers, sorter.capacity())
        };
        let first = batch(0);
        (1..9).for_each(|step| assert_eq!(batch(step), first));
    }

    #[test]
    fn refusals_name_both_values() {
        let mut unique = Unique::new();
        unique.take(&[5, 5, 6]);
        let error = unique.sum(&[0.0; 5], 2, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "gradients of 5 values, expected 3 rows of 2");
        let error = unique.scatter(&[0; 4], 2, &mut [0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "output of 5 bytes, expected 3 rows of 2");
        let error = unique.scatter(&[0; 6], 2, &mut [0; 6]).unwrap_err();
        assert_eq!(error.to_string(), "values of 6 bytes, expected 2 rows of 2");
    }
}
