//! Forecast of hits: what a cache of the first rows of an order would answer.

use super::counts::Counts;
use super::rows::Order;

/// Hits of every prefix of an order, by counts of batches that did not make the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Uses of the rows before each place.
    sums: Vec<u64>,
}

impl Forecast {
    /// Creates the forecast of an order.
    ///
    /// # Panics
    /// If the numbers of vertices differ.
    pub fn new(order: &Order, counts: &Counts) -> Forecast {
        let counts = counts.counts();
        assert_eq!(order.best_first().len(), counts.len(), "vertices of the counts");
        let mut sum = 0;
        let uses = order.best_first().iter().map(|vertex| {
            sum += u64::from(counts[*vertex as usize]);
            sum
        });
        Forecast { sums: std::iter::once(0).chain(uses).collect() }
    }

    /// Returns the fraction of uses that a cache of `rows` rows answers.
    pub fn hit_rate(&self, rows: u32) -> f64 {
        let last = self.sums.len() - 1;
        self.sums[(rows as usize).min(last)] as f64 / self.sums[last].max(1) as f64
    }

    /// Returns the smallest number of rows with at least this hit rate; all rows if there is none.
    pub fn rows_for(&self, hit_rate: f64) -> u32 {
        let last = self.sums.len() - 1;
        let uses = hit_rate * self.sums[last].max(1) as f64;
        self.sums.partition_point(|sum| (*sum as f64) < uses).min(last) as u32
    }
}

/// Returns how many rows of `row_bytes` bytes, bookkeeping included, fit in a memory limit beside what the
/// training itself takes, at most `vertices`.
///
/// PaGraph measures `taken_bytes` in the first step of the training.
pub fn rows_within(limit_bytes: u64, taken_bytes: u64, row_bytes: u64, vertices: u32) -> u32 {
    let rows = limit_bytes.saturating_sub(taken_bytes) / row_bytes.max(1);
    rows.min(u64::from(vertices)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecasts_add_up_the_uses_of_a_prefix() {
        let order = Order::new(vec![2, 0, 1]).unwrap();
        let mut counts = Counts::new(3);
        counts.add(&[0, 2]);
        counts.add(&[1, 2]);
        let forecast = Forecast::new(&order, &counts);
        assert_eq!([0, 1, 2, 3, 9].map(|rows| forecast.hit_rate(rows)), [0.0, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(
            [0.0, 0.2, 0.5, 0.6, 1.0, 2.0].map(|rate| forecast.rows_for(rate)),
            [0, 1, 1, 2, 3, 3]
        );
        assert_eq!(Forecast::new(&order, &Counts::new(3)).hit_rate(2), 0.0);
    }

    #[test]
    fn a_limit_that_is_taken_leaves_no_row() {
        assert_eq!(rows_within(1000, 300, 100, 20), 7);
        assert_eq!(rows_within(1000, 300, 100, 5), 5);
        assert_eq!(rows_within(300, 1000, 100, 20), 0);
    }
}
