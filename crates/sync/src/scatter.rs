//! Compressed reduce-scatter and all-gather, for parameters that are sharded over the ranks.
//!
//! In a reduce-scatter every rank encodes, for each other rank, that rank's chunk, and keeps what
//! the codec lost for the next time (the residual, one per key). The owner decodes and adds in a
//! fixed order to what the codec makes of its own, and the codec has the last word on the sum: with
//! `vote` every rank has one vote, and the result is the majority's. Codecs that want the same
//! random numbers on all ranks get them. In an all-gather every rank encodes its shard once and everybody decodes the same
//! bytes, its owner too, so all ranks hold the same bits.
//!
//! Law of the reduce-scatter, per element, for a codec with feedback: the sum of the results plus
//! the sum over ranks of the residuals after equals the sum of the gradients plus the sum of the
//! residuals before. A NaN or an infinity on any rank skips the call on all: the result is NaN, the
//! residuals are as they were.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_collective::{Driver, Group, Stop, all_gather, all_to_all};
use thinwire_link::Link;
use thinwire_wire::random::Key;
use thinwire_wire::{DType, Rank, World};

use crate::Error;

/// What one place in the model has lost so far, which a restart must know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// How often it was exchanged: where the next random numbers begin.
    pub count: u64,
    /// As long as its gradients, and zero in the chunk of this rank; empty if nothing ever was lost.
    pub residual: Vec<f32>,
}

/// Reduces and gathers shards over links of its own.
#[derive(Debug)]
pub struct Scatter {
    driver: Driver<Vec<f32>>,
    codec: Arc<dyn Codec>,
    seed: u64,
    places: BTreeMap<u64, Place>,
}

impl Scatter {
    /// Forms a group over `link`; gradients travel by `codec`. A wait in which nothing moves for
    /// `timeout` is an error.
    ///
    /// # Errors
    /// If the codec has no bytes of its own: low-rank ones need whole matrices, and a scale that all
    /// ranks share needs averages that all of them know.
    pub fn start(
        link: Box<dyn Link>,
        codec: Choice,
        seed: u64,
        timeout: Duration,
    ) -> Result<Scatter, Error> {
        let codec = match codec {
            Choice::Bytes(codec) => codec,
            Choice::LowRank(codec) => {
                return Err(Error::Invalid(format!(
                    "codec {codec} needs whole matrices, and a shard is none: use int8, int4 or topk"
                )));
            }
            Choice::Integers(codec) => {
                return Err(Error::Invalid(format!(
                    "codec {codec} needs whole averages, and a shard is none: use int8:stochastic or qsgd:8"
                )));
            }
        };
        let driver = Driver::start(Group::new(link).with_timeout(timeout));
        Ok(Scatter { driver, codec, seed, places: BTreeMap::new() })
    }

    /// My place among the ranks.
    pub fn world(&self) -> World {
        self.driver.world()
    }

    /// Ends the group from any thread.
    pub fn stop(&self) -> Stop {
        self.driver.stop()
    }

    /// The sum over all ranks of my chunk of `values`, which are one chunk per rank, equally long,
    /// and travel as `dtype` where they are not compressed. `key` names the place in the model, the
    /// same on all ranks, and finds its residual.
    ///
    /// # Errors
    /// If the values do not divide by the number of ranks or, with feedback, have another length
    /// than the last time, or a peer is lost or gives another length.
    pub fn reduce_scatter(
        &mut self,
        key: u64,
        dtype: DType,
        mut values: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let chunk = self.chunk_of(key, values.len())?;
        let raw = self.codec.is_raw();
        let codec = if raw { thinwire_codec::raw_of(dtype) } else { Arc::clone(&self.codec) };
        let (finite, parts) = self.encode(codec.as_ref(), key, &mut values);
        let received = self.exchange(parts)?;
        let received = || received.chunks_exact(part_len(codec.as_ref(), chunk));
        if finite == Finite::No || received().any(|part| part[0] != 0) {
            return Ok(vec![f32::NAN; chunk]);
        }
        let mine = chunk_at(self.world().rank(), chunk);
        let mut sum = values[mine.clone()].to_vec();
        codec.canonicalise(&mut sum);
        for part in received() {
            codec.decode(&part[1..], Write::Add, &mut sum).map_err(corrupt)?;
        }
        codec.canonicalise(&mut sum);
        let place = self.place(key);
        place.count += 1;
        if codec.needs_feedback() {
            values[mine].fill(0.0);
            place.residual = values;
        }
        Ok(sum)
    }

    /// The shards of all ranks, equally long, in rank order, as `codec` keeps them.
    ///
    /// # Errors
    /// If a peer is lost or has a shard of another length, or a shard is not finite and the codec
    /// cannot say so: that ends the group.
    pub fn all_gather(
        &mut self,
        codec: &Arc<dyn Codec>,
        key: u64,
        mine: &[f32],
    ) -> Result<Vec<f32>, Error> {
        let (world, bytes) = (self.world(), codec.encoded_len(mine.len()));
        let mut encoded = vec![0_u8; bytes];
        let random = self.random(key).for_rank(world.rank().0);
        // Plain elements carry a NaN to everybody; what quantises cannot, and then everybody hears it.
        if codec.encode(Input::Plain(mine), random, &mut encoded) == Finite::No
            && codec.dtype().is_none()
        {
            let me = world.rank();
            self.stop().stop(&format!("a parameter of place {key} is not finite on {me}"));
        }
        let all = self.call(move |group| all_gather(group, &encoded))?;
        let mut values = vec![0.0; mine.len() * world.size()];
        for (rank, part) in values.chunks_exact_mut(mine.len().max(1)).enumerate() {
            codec.decode(&all[rank * bytes..][..bytes], Write::Set, part).map_err(corrupt)?;
        }
        self.place(key).count += 1;
        Ok(values)
    }

    /// The places that were exchanged, by key.
    pub fn state(&self) -> BTreeMap<u64, Place> {
        self.places.clone()
    }

    /// Goes on from places that were saved; others stay as they are.
    pub fn load(&mut self, places: BTreeMap<u64, Place>) {
        self.places.extend(places);
    }

    fn place(&mut self, key: u64) -> &mut Place {
        self.places.entry(key).or_default()
    }

    fn random(&mut self, key: u64) -> Key {
        Key { seed: self.seed, step: self.place(key).count, tensor: key as u32 }
    }

    /// The length of a chunk; makes sure that there is a residual.
    fn chunk_of(&mut self, key: u64, length: usize) -> Result<usize, Error> {
        let size = self.world().size();
        if !length.is_multiple_of(size) {
            return Err(Error::Invalid(format!(
                "{length} elements do not divide into {size} equal chunks"
            )));
        }
        if !self.codec.needs_feedback() {
            return Ok(length / size);
        }
        let residual = &mut self.place(key).residual;
        if residual.is_empty() {
            *residual = vec![0.0; length];
        }
        if residual.len() != length {
            let expected = residual.len();
            return Err(Error::Invalid(format!(
                "gradients of place {key} have {length} elements, expected {expected}"
            )));
        }
        Ok(length / size)
    }

    /// For each other rank a part: a flag, which says that something here is not finite, and its
    /// chunk. What was lost is left in `values`.
    fn encode(&mut self, codec: &dyn Codec, key: u64, values: &mut [f32]) -> (Finite, Vec<u8>) {
        let world = self.world();
        let random = match codec.shares_randomness() {
            true => self.random(key),
            false => self.random(key).for_rank(world.rank().0),
        };
        let residual = &self.place(key).residual;
        let chunk = values.len() / world.size();
        let part = part_len(codec, chunk);
        let mut parts = vec![0_u8; part * (world.size() - 1)];
        let mine = &values[chunk_at(world.rank(), chunk)];
        let mut finite = Finite::when(thinwire_codec::kernel::is_finite(mine));
        for (peer, part) in world.peers().zip(parts.chunks_exact_mut(part)) {
            let range = chunk_at(peer, chunk);
            let values = &mut values[range.clone()];
            let input = match codec.needs_feedback() {
                true => Input::Feedback { values, residual: &residual[range] },
                false => Input::Plain(values),
            };
            let random = Key { seed: random.seed ^ u64::from(peer.0) << 32, ..random };
            finite = finite.and(codec.encode(input, random, &mut part[1..]));
        }
        if finite == Finite::No {
            parts.chunks_exact_mut(part).for_each(|part| part[0] = 1);
        }
        (finite, parts)
    }

    /// Sends every other rank its part; theirs for me, in rank order. All parts are equally long.
    fn exchange(&self, parts: Vec<u8>) -> Result<Vec<u8>, Error> {
        let world = self.world();
        let sent = parts.len();
        let part = sent / (world.size() - 1).max(1);
        let lengths: Vec<usize> =
            world.ranks().map(|rank| if rank == world.rank() { 0 } else { part }).collect();
        let mut values = parts;
        values.resize(2 * sent, 0);
        let values = self.call(move |group| {
            all_to_all(group, &mut values, (&lengths, &lengths)).map(|()| values)
        })?;
        Ok(values[sent..].to_vec())
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Group) -> Result<T, thinwire_collective::Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.driver.call(call).map_err(Error::Collective)
    }
}

/// Bytes of a part: a flag, and the encoding of `chunk` elements.
fn part_len(codec: &dyn Codec, chunk: usize) -> usize {
    1 + codec.encoded_len(chunk)
}

fn chunk_at(rank: Rank, chunk: usize) -> Range<usize> {
    rank.index() * chunk..(rank.index() + 1) * chunk
}

fn corrupt(error: thinwire_codec::Error) -> Error {
    Error::Invalid(format!("a peer sent what is no encoding: {error}"))
}
