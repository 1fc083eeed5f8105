//! Radix sort of distinct rows, which also returns their permutation.

/// Bits of a digit.
const DIGIT: u32 = 11;

/// Number of values of a digit.
const DIGITS: usize = 1 << DIGIT;

/// Number of rows below which a comparison sort is faster.
const SHORT: usize = 512;

/// Buffers of the sort.
#[derive(Clone, Debug, Default)]
pub struct Sorter {
    /// Rows with their original places.
    pairs: Vec<(u64, u32)>,
    other: Vec<(u64, u32)>,
    counts: Vec<u32>,
    ranks: Vec<u32>,
    companions: Vec<u32>,
}

impl Sorter {
    /// Sorts distinct rows, and permutes `companions` in the same way. Returns the new place of each row.
    pub fn sort(&mut self, rows: &mut [u64], companions: &mut [u32]) -> &[u32] {
        self.pairs.clear();
        self.pairs.extend(rows.iter().copied().zip(0..));
        if rows.len() < SHORT {
            self.pairs.sort_unstable();
        } else {
            self.sort_by_digits(rows);
        }
        self.companions.clear();
        self.companions.extend_from_slice(companions);
        self.ranks.clear();
        self.ranks.resize(rows.len(), 0);
        for (rank, (row, place)) in self.pairs.iter().enumerate() {
            rows[rank] = *row;
            companions[rank] = self.companions[*place as usize];
            self.ranks[*place as usize] = rank as u32;
        }
        &self.ranks
    }

    /// Returns the capacities of the buffers, in elements.
    #[cfg(test)]
    pub fn capacity(&self) -> [usize; 5] {
        let Sorter { pairs, other, counts, ranks, companions } = self;
        let pairs = [pairs.capacity(), other.capacity()];
        // The two are swapped between calls.
        let [least, most] = [pairs[0].min(pairs[1]), pairs[0].max(pairs[1])];
        [least, most, counts.capacity(), ranks.capacity(), companions.capacity()]
    }

    fn sort_by_digits(&mut self, rows: &[u64]) {
        // Digits in which all rows agree need no pass.
        let differing = rows.iter().fold(0, |bits, row| bits | (row ^ rows[0]));
        self.other.resize(rows.len(), (0, 0));
        for shift in (0..u64::BITS).step_by(DIGIT as usize) {
            if (differing >> shift) & (DIGITS as u64 - 1) != 0 {
                self.pass(shift);
            }
        }
    }

    /// Sorts by one digit, stably.
    fn pass(&mut self, shift: u32) {
        let digit = |row: u64| (row >> shift) as usize & (DIGITS - 1);
        self.counts.clear();
        self.counts.resize(DIGITS, 0);
        self.pairs.iter().for_each(|(row, _)| self.counts[digit(*row)] += 1);
        let mut start = 0;
        for count in &mut self.counts {
            start += std::mem::replace(count, start);
        }
        for pair in &self.pairs {
            let at = &mut self.counts[digit(pair.0)];
            self.other[*at as usize] = *pair;
            *at += 1;
        }
        std::mem::swap(&mut self.pairs, &mut self.other);
    }
}
