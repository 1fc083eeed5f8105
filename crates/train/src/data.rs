//! Batches of windows of text, the same for every number of ranks.
//!
//! A pass over the data is a seeded permutation of all windows. The global batch is the next windows of
//! that order; a rank takes its contiguous part of the rows, and the first ranks one unit more where parts
//! cannot be equal. Law: the batches of any number of ranks, stacked, are the batch of one rank; and a position is
//! all there is to restore.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thinwire_member::deal;
use thinwire_wire::World;
use thinwire_wire::random::{Key, permutation};

use crate::corpus::Corpus;
use crate::error::{Error, Kind};

/// The random stream of the shuffle, apart from those of parameters and codecs.
const SHUFFLE_STREAM: u32 = 0x7368_7566;
const OFFSET_STREAM: u32 = 0x6f66_6673;

/// Symbols: the bytes.
pub const VOCABULARY: usize = 256;

/// Rows of text: each holds `context` bytes and the byte after each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    context: usize,
}

impl Batch {
    /// Rows of `context + 1` bytes.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of rows.
    pub fn new(bytes: Vec<u8>, context: usize) -> Batch {
        assert!(bytes.len().is_multiple_of(context + 1), "{} bytes are no rows", bytes.len());
        Batch { bytes, context }
    }

    /// The bytes of each row that predictions are made from.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Each row: `context + 1` bytes.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.context + 1)
    }

    /// Returns the number of bytes that are predicted.
    pub fn predictions(&self) -> usize {
        self.rows().len() * self.context
    }

    /// Each byte with the byte after it, row by row.
    pub fn pairs(&self) -> impl Iterator<Item = (u8, u8)> {
        self.rows().flat_map(|row| row.windows(2).map(|pair| (pair[0], pair[1])))
    }
}

/// Where a sampler is: what a checkpoint keeps of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of the pass over the training text, from 0.
    #[serde(rename = "epoch")]
    pub pass: u64,
    /// Windows of this pass that were handed out, by all ranks together.
    pub index: u64,
}

/// Settings of a [`Sampler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Bytes per row.
    pub context: usize,
    /// Rows per step, all ranks together.
    pub global_batch: usize,
    /// Rows of a micro-batch, which no two ranks share.
    pub unit: usize,
    /// This rank's place.
    pub world: World,
    /// The seed of the shuffle.
    pub seed: u64,
}

impl Sampling {
    /// Returns this rank's rows of each global batch.
    pub fn rows(&self) -> Range<usize> {
        rows(self.global_batch, self.unit, self.world)
    }

    /// Returns this rank's part of the global batch, from 0 to 1; none where all ranks have equal parts.
    pub fn share(&self) -> Option<f32> {
        let is_even = (self.global_batch / self.unit).is_multiple_of(self.world.size());
        (!is_even).then(|| self.rows().len() as f32 / self.global_batch as f32)
    }
}

/// Returns a rank's rows of a global batch, whose parts are multiples of `unit` rows.
pub fn rows(global_batch: usize, unit: usize, world: World) -> Range<usize> {
    let Range { start, end } = deal(global_batch / unit, 0, world);
    start as usize * unit..end as usize * unit
}

/// Hands out one rank's batches.
#[derive(Clone, Debug)]
pub struct Sampler {
    corpus: Corpus,
    sampling: Sampling,
    position: Position,
    order: Vec<u32>,
    offset: usize,
}

impl Sampler {
    /// A sampler at the start of the first pass.
    ///
    /// # Errors
    /// If the corpus is shorter than one window, or some rank would have no row.
    pub fn new(corpus: Corpus, sampling: Sampling) -> Result<Sampler, Error> {
        let Sampling { context, global_batch, unit, world, .. } = sampling;
        // A pass starts anywhere in the first window, so two windows make sure of one.
        let (found, least) = (corpus.training().len(), 2 * context);
        if context == 0 || found < least {
            let error = format!("training text of {found} bytes, expected at least {least}");
            let hint = "give more text, or a shorter context";
            return Err(Error::new(Kind::Data, error).with_hint(hint));
        }
        if unit == 0 || !global_batch.is_multiple_of(unit) || global_batch / unit < world.size() {
            let (ranks, least) = (world.size(), world.size() * unit.max(1));
            let error =
                format!("batch of {global_batch} rows for {ranks} ranks, expected {least} or more");
            let hint = format!("take a multiple of {unit} from {least} on, or fewer ranks");
            return Err(Error::new(Kind::Invalid, error).with_hint(hint));
        }
        let position = Position::default();
        let mut sampler = Sampler { corpus, sampling, position, order: Vec::new(), offset: 0 };
        sampler.shuffle();
        Ok(sampler)
    }

    /// Where the next batch starts.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Goes to a position that [`Sampler::position`] gave.
    pub fn seek(&mut self, position: Position) {
        self.position = position;
        self.shuffle();
    }

    /// Goes on as if so many global batches were handed out.
    pub fn skip(&mut self, batches: u64) {
        for _ in 0..batches * self.sampling.global_batch as u64 {
            self.next_start();
        }
    }

    /// The text that is sampled.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// This rank's part of the next global batch.
    pub fn next_batch(&mut self) -> Batch {
        let Sampling { context, global_batch, .. } = self.sampling;
        let mine = self.sampling.rows();
        let mut bytes = Vec::with_capacity(mine.len() * (context + 1));
        for row in 0..global_batch {
            let start = self.next_start();
            if mine.contains(&row) {
                bytes.extend_from_slice(&self.corpus.training()[start..=start + context]);
            }
        }
        Batch::new(bytes, context)
    }

    fn next_start(&mut self) -> usize {
        if self.position.index >= self.order.len() as u64 {
            self.position = Position { pass: self.position.pass + 1, index: 0 };
            self.shuffle();
        }
        let window = self.order[self.position.index as usize];
        self.position.index += 1;
        self.offset + window as usize * self.sampling.context
    }

    /// Orders the windows of a pass. They start at another offset in each pass, so that over many passes
    /// every byte is seen with every length of context.
    fn shuffle(&mut self) {
        let Sampling { context, seed, .. } = self.sampling;
        let key = |tensor| Key { seed, step: self.position.pass, tensor };
        self.offset = key(OFFSET_STREAM).below(0, context as u32) as usize;
        let windows = (self.corpus.training().len() - 1 - self.offset) / context;
        self.order = permutation(key(SHUFFLE_STREAM), windows as u32);
    }
}

/// This rank's part of at most `batches_max` validation batches, spread evenly over the held-out text and
/// dealt as training batches are. Every rank gets as many; none if the text is too short.
pub fn validation_batches(corpus: &Corpus, sampling: &Sampling, batches_max: usize) -> Vec<Batch> {
    let Sampling { context, global_batch, .. } = *sampling;
    let text = corpus.validation();
    let windows = text.len().saturating_sub(1) / context;
    let batches = (windows / global_batch).min(batches_max);
    let stride = windows.checked_div(batches * global_batch).unwrap_or(0);
    let window = |index: usize| &text[index * stride * context..=(index * stride + 1) * context];
    let batch = |batch: usize| {
        let rows = sampling.rows().map(|row| batch * global_batch + row);
        Batch::new(rows.flat_map(window).copied().collect(), context)
    };
    (0..batches).map(batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: usize = 8;

    fn corpus() -> Corpus {
        let text: Vec<u8> = (0..2000_u32).map(|i| (i * i / 7 % 256) as u8).collect();
        Corpus::from_text(&text).unwrap()
    }

    fn sampling(rank: u32, ranks: u32, seed: u64) -> Sampling {
        let world = World::new(rank, ranks).unwrap();
        Sampling { context: CONTEXT, global_batch: 12, unit: 1, world, seed }
    }

    fn sampler(rank: u32, ranks: u32, seed: u64) -> Sampler {
        Sampler::new(corpus(), sampling(rank, ranks, seed)).unwrap()
    }

    #[test]
    fn ranks_together_see_the_batch_of_one() {
        for ranks in [1, 2, 3, 4, 5, 7] {
            let mut one = sampler(0, 1, 5);
            let mut many: Vec<Sampler> = (0..ranks).map(|rank| sampler(rank, ranks, 5)).collect();
            for _ in 0..50 {
                let stacked: Vec<u8> =
                    many.iter_mut().flat_map(|sampler| sampler.next_batch().bytes).collect();
                assert_eq!(one.next_batch().bytes, stacked);
                assert!(many.iter().all(|sampler| sampler.position() == one.position()));
            }
        }
    }

    #[test]
    fn a_pass_holds_every_window_once() {
        let mut sampler = sampler(0, 1, 5);
        let windows = sampler.order.len();
        assert_eq!(windows, (corpus().training().len() - 1 - sampler.offset) / CONTEXT);
        let mut starts: Vec<usize> = (0..windows).map(|_| sampler.next_start()).collect();
        assert_eq!(sampler.position(), Position { pass: 0, index: windows as u64 });
        starts.sort_unstable();
        starts.windows(2).for_each(|pair| assert_eq!(pair[1] - pair[0], CONTEXT));
    }

    #[test]
    fn a_position_restores_the_stream() {
        let mut original = sampler(1, 2, 5);
        for _ in 0..30 {
            original.next_batch();
        }
        let mut restored = sampler(1, 2, 5);
        restored.seek(original.position());
        for _ in 0..30 {
            assert_eq!(original.next_batch(), restored.next_batch());
        }
        assert!(original.position().pass > 0);
        let mut skipped = sampler(0, 3, 5);
        skipped.skip(60);
        assert_eq!(skipped.position(), original.position());
    }

    #[test]
    fn orders_of_seeds_and_passes_differ() {
        let mut one = sampler(0, 1, 5);
        assert_ne!(one.next_batch(), sampler(0, 1, 6).next_batch());
        let first = one.order.clone();
        one.seek(Position { pass: 1, index: 0 });
        assert_ne!(one.order, first);
    }

    #[test]
    fn parts_differ_by_at_most_one_unit_and_their_shares_add_up() {
        let rows = |unit, ranks| {
            let all = (0..ranks).map(|rank| Sampling { unit, ..sampling(rank, ranks, 0) });
            let rows: Vec<usize> = all.clone().map(|sampling| sampling.rows().len()).collect();
            let shares: Option<Vec<f32>> = all.map(|sampling| sampling.share()).collect();
            (rows, shares.map(|shares| shares.iter().sum::<f32>()))
        };
        assert_eq!(rows(1, 4), (vec![3, 3, 3, 3], None));
        assert_eq!(rows(1, 5), (vec![3, 3, 2, 2, 2], Some(1.0)));
        assert_eq!(rows(4, 2), (vec![8, 4], Some(1.0)));
    }

    #[test]
    fn impossible_samplings_are_refused() {
        let sampling = |context, global_batch, ranks| Sampling {
            context,
            global_batch,
            world: World::new(0, ranks).unwrap(),
            ..sampling(0, 1, 0)
        };
        for bad in [sampling(2000, 4, 1), sampling(0, 4, 1), sampling(8, 1, 2), sampling(8, 0, 1)] {
            assert!(Sampler::new(corpus(), bad).unwrap_err().hint().is_some(), "{bad:?}");
        }
        let uncut = Sampling { unit: 8, ..sampling(8, 12, 1) };
        assert!(Sampler::new(corpus(), uncut).is_err());
        let error = Sampler::new(corpus(), sampling(8, 3, 4)).unwrap_err().to_string();
        assert_eq!(error, "batch of 3 rows for 4 ranks, expected 4 or more");
    }

    #[test]
    fn validation_is_dealt_without_overlap() {
        let all = |rank, ranks, global_batch| {
            let sampling = Sampling { global_batch, ..sampling(rank, ranks, 0) };
            validation_batches(&corpus(), &sampling, 5)
        };
        for batch in [4, 5] {
            let [one, left, right] = [all(0, 1, batch), all(0, 2, batch), all(1, 2, batch)];
            assert!(one.len() == left.len() && one.len() == right.len() && !one.is_empty());
            for ((one, left), right) in one.iter().zip(&left).zip(&right) {
                assert_eq!(one.bytes, [left.bytes.clone(), right.bytes.clone()].concat());
            }
        }
        let long = Sampling { context: 500, ..sampling(0, 1, 0) };
        assert!(validation_batches(&corpus(), &long, 5).is_empty());
    }
}
