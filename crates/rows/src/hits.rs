//! Counters of a cache.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Counters of a cache's lookups. A row that occurs several times in a batch counts once, except in `ids`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Looked up batches.
    pub lookups: u64,
    /// Ids in the batches, including repetitions.
    pub ids: u64,
    /// Rows found in the cache.
    pub hits: u64,
    /// Rows not found in the cache, or found too old.
    pub misses: u64,
    /// Misses of rows that were cached, but too old.
    pub stale: u64,
    /// Rows replaced by others.
    pub evictions: u64,
    /// Bytes of missed rows.
    pub bytes_missed: u64,
}

impl Hits {
    /// Returns the fraction of rows that were hits; 0 without lookups.
    pub fn rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl AddAssign for Hits {
    fn add_assign(&mut self, other: Hits) {
        self.lookups += other.lookups;
        self.ids += other.ids;
        self.hits += other.hits;
        self.misses += other.misses;
        self.stale += other.stale;
        self.evictions += other.evictions;
        self.bytes_missed += other.bytes_missed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_come_back_from_json() {
        let mut sum = Hits { lookups: 1, ids: 9, hits: 6, misses: 2, ..Hits::default() };
        assert_eq!((sum.rate(), Hits::default().rate()), (0.75, 0.0));
        sum += Hits { lookups: 1, stale: 3, evictions: 4, bytes_missed: 5, ..sum };
        let text = serde_json::to_string(&sum).unwrap();
        let expected = r#"{"lookups":2,"ids":18,"hits":12,"misses":4,"stale":3,"evictions":4,"bytes_missed":5}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Hits>(&text).unwrap(), sum);
    }
}
