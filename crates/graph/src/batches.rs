//! Batches of a pass: the training vertices in random order, divided over steps and ranks.
//!
//! Laws: a pass has every training vertex once. Its order depends only on seed and pass, so every rank knows
//! the batches of all ranks in advance. The lengths of a rank's batches differ by at most one; with
//! [`Batches::global`], the lengths of all ranks' batches do.

use std::ops::Range;

use thinwire_wire::random::{Key, permutation};

use crate::error::Error;

/// Training vertices of a job, and their division into batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Vertices of each rank, or of all ranks together if they are shuffled globally.
    parts: Vec<Vec<u32>>,
    /// Number of ranks that share a part.
    sharing: u32,
    steps: u32,
    batch: u32,
    /// The largest number of vertices of a part in a pass.
    most: usize,
    seed: u64,
    order: PassOrder,
}

/// Order of the vertices in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassOrder {
    Random,
    Given,
}

/// Position of a batch in a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the pass over the training vertices.
    pub pass: u64,
    /// Number of the step within the pass.
    pub step: u32,
}

/// Batches of one pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The parts of [`Batches`], in the order of the pass.
    orders: Vec<Vec<u32>>,
    sharing: u32,
    steps: u32,
    most: usize,
}

impl Batches {
    /// Creates batches for which every rank draws from all training vertices, at most `batch` per rank and
    /// step.
    ///
    /// # Errors
    /// If there are no training vertices, or `ranks` or `batch` is 0.
    pub fn global(training: Vec<u32>, ranks: u32, batch: u32, seed: u64) -> Result<Batches, Error> {
        Batches::new(vec![training], ranks, batch, seed)
    }

    /// Creates batches for which each rank draws from its own part of the training vertices, at most `batch`
    /// per step. All ranks have the same number of steps; batches of shorter parts are smaller, or empty.
    ///
    /// # Errors
    /// If no part has training vertices, or `batch` is 0.
    pub fn local(parts: Vec<Vec<u32>>, batch: u32, seed: u64) -> Result<Batches, Error> {
        Batches::new(parts, 1, batch, seed)
    }

    fn new(parts: Vec<Vec<u32>>, sharing: u32, batch: u32, seed: u64) -> Result<Batches, Error> {
        let longest = parts.iter().map(Vec::len).max().unwrap_or(0) as u64;
        if longest == 0 || sharing == 0 || batch == 0 {
            return Err(Error::value(format!(
                "{longest} training vertices in batches of {batch} for {sharing} ranks, expected at least 1 of each"
            )));
        }
        let steps = longest.div_ceil(u64::from(batch) * u64::from(sharing)) as u32;
        let (most, order) = (usize::MAX, PassOrder::Random);
        Ok(Batches { parts, sharing, steps, batch, most, seed, order })
    }

    /// Returns batches that all have the full size. Vertices that do not fill a batch are left out of the
    /// pass; if passes are shuffled, other vertices are left out in each pass.
    ///
    /// # Errors
    /// If a part has too few vertices for one such batch per rank.
    pub fn full(self) -> Result<Batches, Error> {
        let together = self.batch as usize * self.sharing as usize;
        let shortest = self.parts.iter().map(Vec::len).min().unwrap_or(0);
        if shortest < together {
            return Err(Error::value(format!(
                "{shortest} training vertices, expected at least {together} for one full batch per rank"
            )));
        }
        let steps = shortest / together;
        Ok(Batches { steps: steps as u32, most: steps * together, ..self })
    }

    /// Returns the same batches without shuffling, such as for validation: every pass has the vertices in the
    /// given order.
    pub fn in_order(self) -> Batches {
        Batches { order: PassOrder::Given, ..self }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.parts.len() as u32 * self.sharing
    }

    /// Returns the number of steps in a pass, the same on every rank.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns the number of training vertices of a rank in a pass, rounded down.
    pub fn training(&self, rank: u32) -> usize {
        self.part(rank).len() / self.sharing as usize
    }

    /// Returns the training vertices from which a rank draws.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn part(&self, rank: u32) -> &[u32] {
        &self.parts[(rank / self.sharing) as usize]
    }

    /// Returns the number of vertices of all ranks in a step of any pass.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn together(&self, step: u32) -> usize {
        assert!(step < self.steps, "step {step} of {}", self.steps);
        let of = |part: &Vec<u32>| share(part.len().min(self.most), step, self.steps).len();
        self.parts.iter().map(of).sum()
    }

    /// Returns the batches of a pass.
    pub fn shuffle(&self, pass: u64) -> Pass {
        let order = |(tensor, part): (u32, &Vec<u32>)| {
            if self.order == PassOrder::Given {
                return part.clone();
            }
            let key = Key { seed: self.seed, step: pass, tensor };
            let order = permutation(key, part.len() as u32);
            order.into_iter().map(|place| part[place as usize]).collect()
        };
        let orders = (0..).zip(&self.parts).map(order).collect();
        Pass { orders, sharing: self.sharing, steps: self.steps, most: self.most }
    }

    /// Returns the key with which a rank samples a batch.
    pub fn key(&self, position: Position, rank: u32) -> Key {
        Key { seed: self.seed, step: position.pass, tensor: position.step }.for_rank(rank)
    }

    /// Returns the position that follows this one.
    pub fn after(&self, Position { pass, step }: Position) -> Position {
        if step + 1 < self.steps {
            Position { pass, step: step + 1 }
        } else {
            Position { pass: pass + 1, step: 0 }
        }
    }
}

impl Pass {
    /// Returns the seeds of a rank in a step.
    ///
    /// # Panics
    /// If there is no such step or rank.
    pub fn seeds(&self, step: u32, rank: u32) -> &[u32] {
        assert!(step < self.steps, "step {step} of {}", self.steps);
        let order = &self.orders[(rank / self.sharing) as usize];
        let together = &order[share(order.len().min(self.most), step, self.steps)];
        &together[share(together.len(), rank % self.sharing, self.sharing)]
    }
}

/// Returns one of `places` consecutive shares of `0..length`, whose lengths differ by at most one.
fn share(length: usize, place: u32, places: u32) -> Range<usize> {
    let (place, places) = (place as usize, places as usize);
    let (least, longer) = (length / places, length % places);
    let start = |place: usize| place * least + place.min(longer);
    start(place)..start(place + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the sorted seeds of a rank in all steps, and the lengths of its batches.
    fn collect(pass: &Pass, rank: u32) -> (Vec<u32>, Vec<usize>) {
        let batches: Vec<_> = (0..pass.steps).map(|step| pass.seeds(step, rank)).collect();
        let mut seeds = batches.concat();
        seeds.sort_unstable();
        (seeds, batches.iter().map(|batch| batch.len()).collect())
    }

    fn spread(lengths: &[usize]) -> usize {
        lengths.iter().max().unwrap() - lengths.iter().min().unwrap()
    }

    proptest! {
        #[test]
        fn every_vertex_is_dealt_once_to_all_ranks(
            count in 1_u32..200, ranks in 1_u32..6, batch in 1_u32..40, pass in 0_u64..3
        ) {
            let batches = Batches::global((7..7 + count).collect(), ranks, batch, 3).unwrap();
            let pass = batches.shuffle(pass);
            let ranks: Vec<_> = (0..ranks).map(|rank| collect(&pass, rank)).collect();
            let mut seeds: Vec<u32> = ranks.iter().flat_map(|(seeds, _)| seeds.clone()).collect();
            seeds.sort_unstable();
            prop_assert!(seeds.into_iter().eq(7..7 + count));
            let lengths: Vec<usize> = ranks.iter().flat_map(|(_, lengths)| lengths.clone()).collect();
            prop_assert!(spread(&lengths) <= 1);
            prop_assert!(*lengths.iter().max().unwrap() <= batch as usize);
        }

        #[test]
        fn every_rank_has_its_own_part(
            counts in prop::collection::vec(0_u32..60, 1..5), batch in 1_u32..9
        ) {
            let first = |rank: usize| 100 * rank as u32;
            let parts = counts.iter().enumerate();
            let parts: Vec<Vec<u32>> = parts.map(|(rank, count)| (first(rank)..first(rank) + count).collect()).collect();
            prop_assume!(counts.iter().any(|count| *count > 0));
            let batches = Batches::local(parts.clone(), batch, 3).unwrap();
            let pass = batches.shuffle(1);
            for (rank, part) in (0..).zip(parts) {
                let (seeds, lengths) = collect(&pass, rank);
                prop_assert_eq!(seeds, part);
                prop_assert!(spread(&lengths) <= 1 && *lengths.iter().max().unwrap() <= batch as usize);
            }
        }
    }

    proptest! {
        #[test]
        fn full_batches_are_all_of_one_length(
            count in 1_u32..200, ranks in 1_u32..6, batch in 1_u32..40, step in 0_u32..9
        ) {
            let batches = Batches::global((0..count).collect(), ranks, batch, 3).unwrap();
            let step = step % batches.steps();
            let lengths = |batches: &Batches| -> Vec<usize> {
                let pass = batches.shuffle(1);
                (0..ranks).map(|rank| pass.seeds(step, rank).len()).collect()
            };
            prop_assert_eq!(batches.together(step), lengths(&batches).iter().sum::<usize>());
            let full = batches.full();
            prop_assert_eq!(full.is_ok(), count >= ranks * batch);
            if let Ok(full) = full && step < full.steps() {
                prop_assert_eq!(full.steps(), count / (ranks * batch));
                prop_assert_eq!(full.together(step), (ranks * batch) as usize);
                prop_assert!(lengths(&full).iter().all(|length| *length == batch as usize));
            }
        }
    }

    #[test]
    fn passes_and_keys_differ() {
        let batches = Batches::global((0..100).collect(), 2, 10, 3).unwrap();
        assert_eq!((batches.steps(), batches.ranks(), batches.training(1)), (5, 2, 50));
        assert_eq!(batches.shuffle(4).orders, batches.shuffle(4).orders);
        assert_ne!(batches.shuffle(4).orders, batches.shuffle(5).orders);
        let position = Position { pass: 0, step: 4 };
        let next = batches.after(position);
        assert_eq!(next, Position { pass: 1, step: 0 });
        assert_eq!(batches.after(next), Position { pass: 1, step: 1 });
        let keys = [(position, 0), (position, 1), (next, 0)];
        let [a, b, c] = keys.map(|(position, rank)| batches.key(position, rank).words(0));
        assert!(a != b && b != c && a != c);
    }

    #[test]
    fn jobs_without_batches_are_refused() {
        let error = Batches::global(vec![], 2, 10, 3).unwrap_err();
        let message =
            "0 training vertices in batches of 10 for 2 ranks, expected at least 1 of each";
        assert_eq!(error.to_string(), message);
        assert!(Batches::global(vec![1], 0, 10, 3).is_err());
        assert!(Batches::local(vec![vec![], vec![1]], 0, 3).is_err());
        assert!(Batches::local(vec![vec![], vec![]], 1, 3).is_err());
    }
}
