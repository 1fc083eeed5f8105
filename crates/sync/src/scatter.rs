//! Compressed reduce-scatter and all-gather, for parameters that are sharded over the ranks.
//!
//! In a reduce-scatter every rank encodes, for each other rank, that rank's chunk, and keeps what
//! the codec lost for the next time (the residual, one per key). The owner decodes and adds to what
//! the codec makes of its own chunk, in rank order, and the codec has
//! the last word on the sum: with `vote` every rank has one vote, and the result is the majority's.
//! Every key has a bucket of its own, which is committed as soon as it has arrived. In an all-gather every
//! rank encodes its shard once and everybody decodes the same bytes, its owner too, so all ranks hold
//! the same bits.
//!
//! Law of the reduce-scatter, per element, for a codec with feedback: the sum of the results plus
//! the sum over ranks of the residuals after equals the sum of the gradients plus the sum of the
//! residuals before. A NaN or an infinity on any rank skips the call on all: the result is NaN, the
//! residuals are as they were.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_collective::{Address, Group, Stop, all_gather, all_gather_bytes};
use thinwire_link::Link;
use thinwire_schedule::Algorithm;
use thinwire_wire::random::Key;
use thinwire_wire::{DType, World};

use crate::bucket::feedback::Memory;
use crate::bucket::layout::Bucket;
use crate::bucket::state::{BucketState, Travel};
use crate::exchange::route::{Ranks, Target};
use crate::worker::{Job, Worker};
use crate::{Channel, Error, Feedback, Outcome, Parameter};

/// The state of one place in the model, which a restart must know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The number of exchanges so far: where the next random numbers begin.
    pub count: u64,
    /// As long as its gradients, and zero in the chunk of this rank; empty if nothing ever was lost.
    pub residual: Vec<f32>,
}

/// Reduces and gathers shards over links of its own.
#[derive(Debug)]
pub struct Scatter {
    worker: Worker,
    codec: Arc<dyn Codec>,
    seed: u64,
    counts: BTreeMap<u64, u64>,
    buckets: BTreeMap<u64, BucketState>,
}

impl Scatter {
    /// Forms a group over `link`; gradients travel by `codec`. A wait in which nothing moves for
    /// `timeout` is an error.
    ///
    /// # Errors
    /// If the codec has no bytes of its own: low-rank ones need whole matrices, and a scale that all
    /// ranks share needs averages that all of them know.
    pub fn start(
        link: Link,
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
        let worker = Worker::new(Channel::new(Group::new(link).with_timeout(timeout)));
        Ok(Scatter { worker, codec, seed, counts: BTreeMap::new(), buckets: BTreeMap::new() })
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.worker.channel.world()
    }

    /// Ends the group from any thread.
    pub fn stop(&self) -> Stop {
        self.worker.channel.stop()
    }

    /// Returns the sum over all ranks of my chunk of `values`, which are one chunk per rank, equally long,
    /// and travel as `dtype` where they are not compressed. `key` names the place in the model, the
    /// same on all ranks, and finds its residual.
    ///
    /// # Errors
    /// If the values do not divide by the number of ranks or, with feedback, have another length
    /// than the last time, or a peer is lost or gives another length; the residual is then as it was.
    pub fn reduce_scatter(
        &mut self,
        key: u64,
        dtype: DType,
        values: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let (size, length) = (self.world().size(), values.len());
        if !length.is_multiple_of(size) {
            return Err(Error::Invalid(format!(
                "{length} elements do not divide into {size} equal chunks"
            )));
        }
        self.prepare(key, dtype, length)?;
        let Key { seed, step, tensor } = self.random(key);
        let address = Address { step, tensor, seed, operation: "reduce_scatter" };
        let state = self.buckets.get_mut(&key).expect("it was prepared");
        state.fill(values);
        let (exchange, departure) = state.depart(address);
        self.worker.exchange(Job { bucket: 0, exchange, departure });
        let arrival = match self.worker.arrival() {
            Ok(arrival) => arrival,
            Err(loss) => {
                state.lose(loss.exchange, loss.departure);
                state.commit(Outcome::Skipped, &[])?;
                return Err(loss.error);
            }
        };
        state.arrive(arrival.exchange, arrival.finite);
        // Messages of a call that was skipped must not be taken for those of the next one.
        *self.counts.entry(key).or_default() += 1;
        if arrival.finite == Finite::No {
            state.commit(Outcome::Skipped, &[])?;
            return Ok(vec![f32::NAN; length / size]);
        }
        state.commit(Outcome::Averaged, &[])?;
        Ok(state.values().to_vec())
    }

    /// Returns the shards of all ranks, equally long, in rank order, as `codec` keeps them.
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
        encoded.truncate(codec.frame_len(&encoded));
        let is_variable = codec.is_variable();
        let all = self.worker.channel.call(move |group| match is_variable {
            true => all_gather_bytes(group, &encoded),
            false => {
                Ok(all_gather(group, &encoded)?.chunks(bytes.max(1)).map(<[u8]>::to_vec).collect())
            }
        })?;
        let mut values = vec![0.0; mine.len() * world.size()];
        for (part, bytes) in values.chunks_exact_mut(mine.len().max(1)).zip(&all) {
            codec.decode(bytes, Write::Set, part).map_err(corrupt)?;
        }
        *self.counts.entry(key).or_default() += 1;
        Ok(values)
    }

    /// Returns the places that were exchanged, by key.
    pub fn state(&self) -> BTreeMap<u64, Place> {
        let place = |(key, count): (&u64, &u64)| {
            let residual = self.buckets.get(key).map_or(&[][..], BucketState::residual).to_vec();
            (*key, Place { count: *count, residual })
        };
        self.counts.iter().map(place).collect()
    }

    /// Goes on from places that were saved; others stay as they are.
    pub fn load(&mut self, places: BTreeMap<u64, Place>) {
        for (key, Place { count, residual }) in places {
            self.counts.insert(key, count);
            let state = self.fresh(DType::F32, residual.len(), residual);
            self.buckets.insert(key, state);
        }
    }

    fn random(&self, key: u64) -> Key {
        let step = self.counts.get(&key).copied().unwrap_or_default();
        Key { seed: self.seed, step, tensor: key as u32 }
    }

    /// Makes sure that a place has a bucket for gradients of this dtype and length.
    fn prepare(&mut self, key: u64, dtype: DType, length: usize) -> Result<(), Error> {
        let residual = match self.buckets.get(&key) {
            Some(state) if (state.bucket.elements, state.bucket.dtype) == (length, dtype) => {
                return Ok(());
            }
            Some(state) => state.residual().to_vec(),
            None => Vec::new(),
        };
        if !residual.is_empty() && residual.len() != length {
            let expected = residual.len();
            return Err(Error::Invalid(format!(
                "gradients of place {key} have {length} elements, expected {expected}"
            )));
        }
        let state = self.fresh(dtype, length, residual);
        self.buckets.insert(key, state);
        Ok(())
    }

    /// Returns the bucket of one place.
    fn fresh(&self, dtype: DType, elements: usize, residual: Vec<f32>) -> BucketState {
        let parameter = Parameter { dtype, ..Parameter::new("", &[elements]) };
        let bucket = Bucket::of_one(0, &parameter);
        let raw = self.codec.is_raw();
        let codec = if raw { bucket.raw() } else { Arc::clone(&self.codec) };
        let bucket = Bucket { target: Target::Shard, ..bucket };
        let memory = Memory::new(Feedback::Classic);
        let mut state =
            BucketState::new(bucket, &[parameter], Ranks::all(self.world()), memory, None);
        state.set_residual(residual);
        state.travel(Travel {
            codec: Choice::Bytes(codec),
            summation: Algorithm::TwoShot.into(),
            partitions: 1,
            seed: self.seed,
        });
        state
    }
}

fn corrupt(error: thinwire_codec::Error) -> Error {
    Error::Invalid(format!("a peer sent what is no encoding: {error}"))
}
