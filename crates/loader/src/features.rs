//! Features: the source of the rows of vertices.

use std::fmt;
use std::sync::Arc;

use thinwire_rows::Source;

use crate::remote::SharedSource;

/// Largest number of rows of a probe.
const PROBE_ROWS: u64 = 256;
/// Largest number of bytes of a probe, unless it is a single row.
const PROBE_BYTES: u64 = 16 << 20;

/// Source of feature rows, and the cache in front of it.
#[derive(Clone)]
pub struct Features {
    pub(crate) source: SharedSource,
    pub(crate) cache: Option<(u64, Policy)>,
}

/// Policy of a loader's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The rows that the next batches use, looking [`Options::ahead`](crate::Options::ahead) batches ahead.
    Foreseen,
    /// Rows that are used again soon, according to SIEVE.
    Sieve,
    /// The rows that were used last.
    Lru,
}

impl Features {
    /// Returns features without a cache. Sampling threads read their rows, which should be in this process's
    /// memory or in a file on its machine.
    pub fn direct(source: impl Source + Send + 'static) -> Features {
        Features { source: Arc::new(source), cache: None }
    }

    /// Returns features with a cache that takes at most `bytes_max` bytes, including bookkeeping.
    pub fn cached(
        source: impl Source + Send + 'static,
        bytes_max: u64,
        policy: Policy,
    ) -> Features {
        Features { source: Arc::new(source), cache: Some((bytes_max, policy)) }
    }

    /// Reads some of the first `count` rows, evenly spaced, as a sample of their content: at most 256
    /// rows and 16 MiB, but at least one row.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn probe(&self, count: u64) -> Result<Vec<u8>, thinwire_rows::Error> {
        let width = self.source.width();
        let most = (PROBE_BYTES / width as u64).clamp(1, PROBE_ROWS);
        let step = count.div_ceil(most).max(1);
        let rows: Vec<u64> = (0..count).step_by(step as usize).collect();
        let mut values = vec![0; rows.len() * width];
        self.source.read(&rows, &mut values)?;
        Ok(values)
    }

    /// Writes the row numbers of vertices.
    pub(crate) fn number(&self, vertices: &[u32], ids: &mut Vec<u64>) {
        ids.clear();
        ids.extend(vertices.iter().map(|vertex| u64::from(*vertex)));
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Features");
        debug
            .field("width", &self.source.width())
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}
