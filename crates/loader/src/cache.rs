//! Cache of a loader: rows under one of several policies.

use thinwire_rows::{Cache, Error, Foreseen, Hits, Lookup, Lru, Policy, SLOT_BYTES, Sieve, Source};

use crate::features::{self, Features};

/// Policy that was chosen.
enum Chosen {
    Foreseen(Box<Foreseen>),
    Sieve(Sieve),
    Lru(Lru),
}

/// Optional cache in front of a source of rows. Rows that the source has in its own process bypass the
/// cache.
pub struct RowCache {
    cache: Option<Cache<Chosen>>,
    lookup: Lookup,
    ahead: usize,
    others: Others,
}

/// Rows of a batch that the source does not have itself.
#[derive(Default)]
struct Others {
    rows: Vec<u64>,
    /// Their indices in the batch.
    places: Vec<usize>,
    values: Vec<u8>,
}

impl RowCache {
    /// Creates the cache in front of `features`, a source of `rows` rows. A foreseeing cache knows at
    /// most `ahead` batches beyond the current one.
    pub fn new(features: &Features, rows: u64, ahead: u32) -> RowCache {
        let width = features.source.width();
        let ahead = ahead as usize;
        let cache = features.cache.map(|(bytes, policy)| {
            // Slots beyond the last row would never be used.
            let bytes = bytes.min(rows.saturating_mul((width + SLOT_BYTES) as u64));
            Cache::new(width, bytes, |slots| Chosen::new(policy, slots, ahead))
        });
        let foresees = matches!(features.cache, Some((_, features::Policy::Foreseen)));
        let ahead = if foresees { ahead } else { 0 };
        RowCache { cache, lookup: Lookup::new(), ahead, others: Others::default() }
    }

    /// Returns the number of batches beyond the current one that the cache knows.
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    /// Tells a foreseeing cache about a batch that will be read.
    pub fn tell(&mut self, features: &Features, ids: &[u64]) {
        if let Some(Chosen::Foreseen(policy)) = self.cache.as_mut().map(Cache::policy_mut) {
            let others = ids.iter().filter(|id| features.source.own(**id).is_none());
            self.others.rows.clear();
            self.others.rows.extend(others);
            let told = policy.tell(&self.others.rows);
            debug_assert!(told, "there is room for the batches ahead and one more");
        }
    }

    /// Reads the rows of a batch into `out`; does nothing without a cache.
    pub fn read(
        &mut self,
        features: &Features,
        ids: &[u64],
        out: &mut [u8],
    ) -> Result<Hits, Error> {
        let Some(cache) = &mut self.cache else { return Ok(Hits::default()) };
        let (source, others) = (&*features.source, &mut self.others);
        others.copy_own(source, ids, out);
        if others.rows.len() == ids.len() {
            cache.read(source, ids, &mut self.lookup, out)?;
        } else {
            others.values.resize(others.rows.len() * source.width(), 0);
            cache.read(source, &others.rows, &mut self.lookup, &mut others.values)?;
            others.scatter(source.width(), out);
        }
        Ok(cache.hits())
    }
}

impl Others {
    /// Copies rows that the source has in its own process to their positions, and lists the others.
    fn copy_own(&mut self, source: &dyn Source, ids: &[u64], out: &mut [u8]) {
        self.rows.clear();
        self.places.clear();
        for ((place, id), out) in ids.iter().enumerate().zip(out.chunks_exact_mut(source.width())) {
            match source.own(*id) {
                Some(row) => out.copy_from_slice(row),
                None => {
                    self.rows.push(*id);
                    self.places.push(place);
                }
            }
        }
    }

    /// Copies the values to their positions.
    fn scatter(&self, width: usize, out: &mut [u8]) {
        for (place, value) in self.places.iter().zip(self.values.chunks_exact(width)) {
            out[place * width..][..width].copy_from_slice(value);
        }
    }
}

impl Chosen {
    fn new(policy: features::Policy, slots: u32, ahead: usize) -> Chosen {
        match policy {
            features::Policy::Foreseen => {
                Chosen::Foreseen(Box::new(Foreseen::new(slots, ahead as u32 + 1)))
            }
            features::Policy::Sieve => Chosen::Sieve(Sieve::new(slots)),
            features::Policy::Lru => Chosen::Lru(Lru::new(slots)),
        }
    }

    fn policy(&mut self) -> &mut dyn Policy {
        match self {
            Chosen::Foreseen(policy) => &mut **policy,
            Chosen::Sieve(policy) => policy,
            Chosen::Lru(policy) => policy,
        }
    }
}

impl Policy for Chosen {
    fn hit(&mut self, slot: u32) {
        self.policy().hit(slot);
    }

    fn admit(&mut self, row: u64) -> Option<u32> {
        self.policy().admit(row)
    }

    fn begin(&mut self) {
        self.policy().begin();
    }
}
