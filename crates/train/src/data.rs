//! Batches of text windows or of images. They are the same for every number of ranks.
//!
//! A pass over the data is a seeded permutation of all rows. A global batch consists of the next rows in
//! that order. Each rank takes a contiguous part of the batch; if parts cannot be equal, the first ranks
//! have one unit more. Law: for any number of ranks, their batches stacked equal the batch of one rank.
//! A [`Position`] is all that a sampler needs to continue.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thinwire_member::deal;
use thinwire_wire::World;
use thinwire_wire::random::{Key, permutation};

use crate::batch::Batch;
use crate::dataset::Dataset;
use crate::error::{Error, Kind};

/// The random stream of the shuffle, which differs from those of parameters and codecs.
const SHUFFLE_STREAM: u32 = 0x7368_7566;
const OFFSET_STREAM: u32 = 0x6f66_6673;

/// Number of symbols: one per byte value.
pub const VOCABULARY: usize = 256;

/// Position of a sampler, as a checkpoint stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of the pass over the training data, from 0.
    #[serde(rename = "epoch")]
    pub pass: u64,
    /// Rows of this pass that were handed out, to all ranks together.
    pub index: u64,
}

/// Settings of a [`Sampler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Bytes per row of text; 1 for images.
    pub context: usize,
    /// Rows per step, all ranks together.
    pub global_batch: usize,
    /// Rows of a micro-batch, which are never split between ranks.
    pub unit: usize,
    /// This rank and the number of ranks.
    pub world: World,
    /// The seed of the shuffle.
    pub seed: u64,
}

impl Sampling {
    /// Returns this rank's rows of each global batch.
    pub fn rows(&self) -> Range<usize> {
        rows(self.global_batch, self.unit, self.world)
    }

    /// Returns this rank's part of the global batch, from 0 to 1; `None` if all ranks have equal parts.
    pub fn share(&self) -> Option<f32> {
        let is_even = (self.global_batch / self.unit).is_multiple_of(self.world.size());
        (!is_even).then(|| self.rows().len() as f32 / self.global_batch as f32)
    }
}

/// Returns a rank's rows of a global batch. The part of every rank is a multiple of `unit` rows.
pub fn rows(global_batch: usize, unit: usize, world: World) -> Range<usize> {
    let Range { start, end } = deal(global_batch / unit, 0, world);
    start as usize * unit..end as usize * unit
}

/// Sampler of one rank's batches.
#[derive(Clone, Debug)]
pub struct Sampler {
    data: Dataset,
    sampling: Sampling,
    position: Position,
    order: Vec<u32>,
    offset: usize,
}

impl Sampler {
    /// Returns a sampler at the start of the first pass.
    ///
    /// # Errors
    /// If the text is shorter than two windows, there is no image, or some rank would have no row.
    pub fn new(data: impl Into<Dataset>, sampling: Sampling) -> Result<Sampler, Error> {
        let data = data.into();
        let Sampling { context, global_batch, unit, world, .. } = sampling;
        data.check(context)?;
        if unit == 0 || !global_batch.is_multiple_of(unit) || global_batch / unit < world.size() {
            let (ranks, least) = (world.size(), world.size() * unit.max(1));
            let error =
                format!("batch of {global_batch} rows for {ranks} ranks, expected {least} or more");
            let hint = format!("take a multiple of {unit} from {least} on, or fewer ranks");
            return Err(Error::new(Kind::Invalid, error).with_hint(hint));
        }
        let position = Position::default();
        let mut sampler = Sampler { data, sampling, position, order: Vec::new(), offset: 0 };
        sampler.shuffle();
        Ok(sampler)
    }

    /// Returns the position of the next batch.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Goes to a position that [`Sampler::position`] gave.
    pub fn seek(&mut self, position: Position) {
        self.position = position;
        self.shuffle();
    }

    /// Continues as if `batches` global batches had been handed out.
    pub fn skip(&mut self, batches: u64) {
        for _ in 0..batches * self.sampling.global_batch as u64 {
            self.next_start();
        }
    }

    /// Returns this rank's part of the next global batch.
    pub fn next_batch(&mut self) -> Batch {
        let Sampling { context, global_batch, .. } = self.sampling;
        let mine = self.sampling.rows();
        let mut starts = Vec::with_capacity(mine.len());
        for row in 0..global_batch {
            let start = self.next_start();
            if mine.contains(&row) {
                starts.push(start);
            }
        }
        self.data.batch(&starts, context)
    }

    /// Returns the start of the next row: the index of a byte of the text, or of an image.
    fn next_start(&mut self) -> usize {
        if self.position.index >= self.order.len() as u64 {
            self.position = Position { pass: self.position.pass + 1, index: 0 };
            self.shuffle();
        }
        let row = self.order[self.position.index as usize] as usize;
        self.position.index += 1;
        match &self.data {
            Dataset::Text(_) => self.offset + row * self.sampling.context,
            Dataset::Images(_) => row,
        }
    }

    /// Orders the rows of a pass. Windows of text start at another offset in each pass, so that over many passes
    /// every byte is seen with every length of context.
    fn shuffle(&mut self) {
        let Sampling { context, seed, .. } = self.sampling;
        let key = |tensor| Key { seed, step: self.position.pass, tensor };
        self.offset = key(OFFSET_STREAM).below(0, context as u32) as usize;
        let rows = self.data.rows(context, self.offset);
        self.order = permutation(key(SHUFFLE_STREAM), rows as u32);
    }
}

/// Returns this rank's part of at most `batches_max` validation batches, which are spread evenly over the
/// held-out data and divided like training batches. Every rank has the same number of batches; there are none
/// if there is too little data.
pub fn validation_batches(data: &Dataset, sampling: &Sampling, batches_max: usize) -> Vec<Batch> {
    let Sampling { context, global_batch, .. } = *sampling;
    let (batches, stride) = held_out_batches(data, sampling, batches_max);
    let batch = |batch: usize| {
        let rows = sampling.rows().map(|row| (batch * global_batch + row) * stride);
        data.validation(rows, context)
    };
    (0..batches).map(batch).collect()
}

/// Returns the number of global batches in the held-out data, and the distance between their rows.
fn held_out_batches(data: &Dataset, sampling: &Sampling, batches_max: usize) -> (usize, usize) {
    let held_out = data.held_out(sampling.context);
    let batches = (held_out / sampling.global_batch).min(batches_max);
    (batches, held_out.checked_div(batches * sampling.global_batch).unwrap_or(0))
}

/// Returns the rows of all ranks' validation batches, in batches as large as this rank's; rows that do not
/// fill a batch are left out. A rank that exchanges nothing computes the validation loss from these
/// batches.
pub fn whole_validation_batches(
    data: &Dataset,
    sampling: &Sampling,
    batches_max: usize,
) -> Vec<Batch> {
    let Sampling { context, global_batch, .. } = *sampling;
    let (batches, stride) = held_out_batches(data, sampling, batches_max);
    let rows = batches * global_batch;
    let mine = sampling.rows().len();
    let batch =
        |first: usize| data.validation((first..first + mine).map(|row| row * stride), context);
    (0..rows.checked_div(mine).unwrap_or(0)).map(|at| batch(at * mine)).collect()
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use super::*;
    use crate::corpus::Corpus;
    use crate::images::{Form, Images, Pixels};

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

    /// Returns images of one pixel, each with another value and label.
    fn images() -> Images {
        let form = Form { shape: [1, 1, 1], classes: 256 };
        Images::new(form, Pixels::Bytes((0..100).collect()), (0..100).rev().collect()).unwrap()
    }

    /// Returns the content of each row of a batch.
    fn contents(batch: &Batch) -> Vec<Vec<u8>> {
        match batch {
            Batch::Text(windows) => windows.rows().map(<[u8]>::to_vec).collect(),
            Batch::Images(images) => {
                let value = |at: usize| (255.0 * images.values(at)[0]).round() as u8;
                images.labels().enumerate().map(|(at, y)| vec![value(at), y as u8]).collect()
            }
        }
    }

    #[test]
    fn ranks_together_see_the_batch_of_one() {
        let data = |images_| if images_ { Dataset::from(images()) } else { corpus().into() };
        for (ranks, is_images) in
            [1, 2, 3, 4, 5, 7].into_iter().zip([false, true].into_iter().cycle())
        {
            let sampler =
                |rank, ranks| Sampler::new(data(is_images), sampling(rank, ranks, 5)).unwrap();
            let mut one = sampler(0, 1);
            let mut many: Vec<Sampler> = (0..ranks).map(|rank| sampler(rank, ranks)).collect();
            for _ in 0..50 {
                let batches = many.iter_mut().map(Sampler::next_batch);
                let stacked: Vec<Vec<u8>> = batches.flat_map(|batch| contents(&batch)).collect();
                assert_eq!(contents(&one.next_batch()), stacked);
                assert!(many.iter().all(|sampler| sampler.position() == one.position()));
            }
        }
    }

    #[test]
    fn a_pass_holds_every_image_with_its_label_once_and_none_that_is_held_out() {
        let sampling = Sampling { context: 1, global_batch: 9, ..sampling(0, 1, 5) };
        let mut sampler = Sampler::new(images(), sampling).unwrap();
        let mut seen: Vec<Vec<u8>> =
            (0..10).flat_map(|_| contents(&sampler.next_batch())).collect();
        assert_eq!(sampler.position(), Position { pass: 0, index: 90 });
        let held_out =
            validation_batches(&images().into(), &Sampling { global_batch: 5, ..sampling }, 8);
        assert_eq!(held_out.len(), 2);
        seen.extend(held_out.iter().flat_map(contents));
        seen.sort();
        assert_eq!(seen, (0..100).map(|at| vec![at, 99 - at]).collect::<Vec<_>>());
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
            validation_batches(&corpus().into(), &sampling, 5)
        };
        for batch in [4, 5] {
            let [one, left, right] = [all(0, 1, batch), all(0, 2, batch), all(1, 2, batch)];
            assert!(one.len() == left.len() && one.len() == right.len() && !one.is_empty());
            for ((one, left), right) in one.iter().zip(&left).zip(&right) {
                assert_eq!(contents(one), [contents(left), contents(right)].concat());
            }
        }
        let long = Sampling { context: 500, ..sampling(0, 1, 0) };
        assert!(validation_batches(&corpus().into(), &long, 5).is_empty());
    }
}
