//! Compressed reduce-scatter and all-gather, for parameters that are sharded over the ranks.
//!
//! In a reduce-scatter every rank encodes, for each other rank, that rank's chunk, and keeps the error of
//! the encoding (the residual) for the next call. The owner decodes the encodings and adds them to its own
//! chunk, in rank order, and the codec may change the sum: under `vote`, the owner replaces its own values
//! and the sum by their signs. In an all-gather every rank encodes its shard once, and all ranks, its
//! owner included, decode the same bytes, so all have the same bits.
//!
//! A chunk consists of parts of several parameters. Each parameter has a residual of its own, which is the
//! same whatever other parameters travel with it. Parameters that travel together share a bucket until one
//! of them travels with others; a bucket is committed as soon as it has arrived.
//!
//! Law of the reduce-scatter, per element, for a codec with feedback: the sum of the results plus
//! the sum over ranks of the residuals after equals the sum of the gradients plus the sum of the
//! residuals before; residuals of parameters that are not in the call stay. A NaN or an infinity on any
//! rank skips the call on all: the result is NaN, the residuals are as they were.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_collective::{Address, Group, Stop, all_gather, all_gather_bytes};
use thinwire_device::Region;
use thinwire_link::Link;
use thinwire_schedule::Algorithm;
use thinwire_wire::random::Key;
use thinwire_wire::{DType, World};

use crate::bucket::feedback::Memory;
use crate::bucket::layout::Bucket;
use crate::bucket::state::{BucketState, Travel};
use crate::exchange::route::{Ranks, Target};
use crate::worker::{Job, Worker};
use crate::{Channel, Error, Feedback, Gradient, Outcome, Parameter};

/// The state of one key, such as a parameter, for a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The number of exchanges so far, which selects the next random numbers.
    pub count: u64,
    /// The residuals of the parameter's part of every rank's chunk, in rank order, with zeros for this
    /// rank's own chunk; empty if no encoding had an error.
    pub residual: Vec<f32>,
}

/// One parameter's part of every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Identifies the parameter; the same on all ranks.
    pub key: u64,
    /// The number of elements in each chunk, the same on all ranks.
    pub elements: usize,
}

/// Compressed reduce-scatter and all-gather over links of their own.
#[derive(Debug)]
pub struct Scatter {
    worker: Worker,
    codec: Arc<dyn Codec>,
    seed: u64,
    counts: BTreeMap<u64, u64>,
    /// By the key of the first parameter. No parameter is in two of them.
    buckets: BTreeMap<u64, Packed>,
    /// By key, the residuals of parameters that are in no bucket.
    residuals: BTreeMap<u64, Vec<f32>>,
}

/// The bucket of parameters that travel together, and their residual.
#[derive(Debug)]
struct Packed {
    parts: Vec<Part>,
    state: BucketState,
}

impl Scatter {
    /// Forms a group over `link`; gradients travel by `codec`. A wait in which nothing moves for
    /// `timeout` is an error.
    ///
    /// # Errors
    /// If the codec does not encode to bytes: low-rank codecs need whole matrices, and codecs with a
    /// scale that all ranks share need averages that all ranks know.
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
                    "codec {codec} needs whole matrices, and each rank has only a shard: use int8, int4 or topk"
                )));
            }
            Choice::Integers(codec) => {
                return Err(Error::Invalid(format!(
                    "codec {codec} needs the whole averaged gradient, and each rank has only a shard: use int8:stochastic or qsgd:8"
                )));
            }
        };
        let worker = Worker::new(Channel::new(Group::new(link).with_timeout(timeout)));
        Ok(Scatter {
            worker,
            codec,
            seed,
            counts: BTreeMap::new(),
            buckets: BTreeMap::new(),
            residuals: BTreeMap::new(),
        })
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.worker.channel.world()
    }

    /// Returns the bytes that this rank has sent.
    ///
    /// # Errors
    /// If the group has ended.
    pub fn sent_bytes(&self) -> Result<u64, Error> {
        Ok(self.worker.channel.driver().call(|group| Ok(group.counters().sent_bytes))?)
    }

    /// Returns a handle by which any thread can end the group.
    pub fn stop(&self) -> Stop {
        self.worker.channel.stop()
    }

    /// Returns the sum over all ranks of this rank's chunk of `values`. `values` has one chunk per
    /// rank; gradients that are not compressed travel as `dtype`. Every chunk has the same `parts`, in
    /// the same order on all ranks.
    ///
    /// # Errors
    /// If the parts do not add up to the length of a chunk, a parameter occurs twice or has another
    /// length than before, or a peer is lost or gives other parts. Residuals are then unchanged.
    pub fn reduce_scatter(
        &mut self,
        parts: &[Part],
        dtype: DType,
        values: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let chunk = values.len() / self.world().size();
        let state = self.reduce(parts, dtype, values.len(), |state| state.fill(values))?;
        Ok(state.map_or_else(|| vec![f32::NAN; chunk], |state| state.values().to_vec()))
    }

    /// Does the same as [`Scatter::reduce_scatter`], for `values * scale` in the memory of a device.
    /// Returns `None` where that call would return NaN. The sum is in the returned region once the
    /// device has done all work that was submitted before.
    ///
    /// # Errors
    /// As [`Scatter::reduce_scatter`].
    pub fn reduce_scatter_on_device(
        &mut self,
        parts: &[Part],
        dtype: DType,
        values: &Region,
        scale: f32,
    ) -> Result<Option<Region>, Error> {
        let take = |state: &mut BucketState| {
            state.clear();
            state.pack(0..values.len(), Gradient::Device(values), scale);
        };
        let state = self.reduce(parts, dtype, values.len(), take)?;
        Ok(state.map(|state| state.region().expect("sums of a device stay there")))
    }

    /// Sums what `take` gives a bucket over all ranks; returns the bucket unless a value was not finite.
    fn reduce(
        &mut self,
        parts: &[Part],
        dtype: DType,
        elements: usize,
        take: impl FnOnce(&mut BucketState),
    ) -> Result<Option<&BucketState>, Error> {
        self.prepare(parts, dtype, elements)?;
        let address = self.address(parts)?;
        let first = parts[0].key;
        let Packed { state, .. } = self.buckets.get_mut(&first).expect("it was prepared");
        take(state);
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
        // The random numbers of a call that was skipped are not drawn again.
        parts.iter().for_each(|part| *self.counts.entry(part.key).or_default() += 1);
        let outcome = match arrival.finite {
            Finite::Yes => Outcome::Averaged,
            Finite::No => Outcome::Skipped,
        };
        state.commit(outcome, &[])?;
        Ok((outcome == Outcome::Averaged).then_some(state))
    }

    /// Returns the shards of all ranks in rank order, as `codec` decodes them. All shards have the same
    /// length.
    ///
    /// # Errors
    /// If a peer is lost or has a shard of another length, or a shard is not finite and the codec
    /// cannot report that. The group ends in the last case.
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

    /// Returns the state of each key that was exchanged.
    pub fn state(&self) -> BTreeMap<u64, Place> {
        let packed = self.buckets.values().flat_map(|packed| packed.residuals(self.world()));
        let mut residuals: BTreeMap<u64, Vec<f32>> = packed.collect();
        residuals.extend(self.residuals.iter().map(|(key, owed)| (*key, owed.clone())));
        let place = |(key, count): (&u64, &u64)| {
            let residual = residuals.remove(key).unwrap_or_default();
            (*key, Place { count: *count, residual })
        };
        self.counts.iter().map(place).collect()
    }

    /// Continues from saved states; keys without one stay as they are.
    pub fn load(&mut self, places: BTreeMap<u64, Place>) {
        self.unpack(&places.keys().copied().collect());
        for (key, Place { count, residual }) in places {
            self.counts.insert(key, count);
            self.residuals.remove(&key);
            self.owe(key, residual);
        }
    }

    fn random(&self, key: u64) -> Key {
        let step = self.counts.get(&key).copied().unwrap_or_default();
        Key { seed: self.seed, step, tensor: key as u32 }
    }

    /// Returns the address of the next reduce-scatter; ranks at another address, or with other parts,
    /// fail. Random numbers follow from the parts and the number of exchanges of the first one.
    fn address(&self, parts: &[Part]) -> Result<Address, Error> {
        let address = self.worker.channel.call(|group| Ok(group.next_call("reduce_scatter")))?;
        let words = |part: &Part| [part.key, part.elements as u64].map(u64::to_le_bytes);
        let bytes = parts.iter().flat_map(words).flatten().collect::<Vec<u8>>();
        let tensor = address.tensor ^ thinwire_wire::checksum(&bytes);
        let [low, high, ..] = Key { tensor, ..self.random(parts[0].key) }.words(0);
        Ok(Address { tensor, seed: u64::from(low) | u64::from(high) << 32, ..address })
    }

    /// Makes sure that these parts have a bucket for gradients of this dtype.
    fn prepare(&mut self, parts: &[Part], dtype: DType, length: usize) -> Result<(), Error> {
        let (size, chunk) = (self.world().size(), elements(parts));
        let Some(first) = parts.first().filter(|_| length == size.saturating_mul(chunk)) else {
            return Err(Error::Invalid(format!(
                "{length} elements for {size} ranks, expected {chunk} for each"
            )));
        };
        let bucket = self.buckets.get(&first.key);
        if bucket.is_some_and(|Packed { parts: known, state }| {
            known == parts && state.bucket.dtype == dtype
        }) {
            return Ok(());
        }
        let keys: BTreeSet<u64> = parts.iter().map(|part| part.key).collect();
        if keys.len() != parts.len() {
            return Err(Error::Invalid(
                "a parameter appears twice in one call, expected once".to_owned(),
            ));
        }
        self.unpack(&keys);
        let residual = self.pack(parts)?;
        let state = self.fresh(dtype, length, residual);
        self.buckets.insert(first.key, Packed { parts: parts.to_vec(), state });
        Ok(())
    }

    /// Dissolves the buckets of these parameters; all residuals in them stay.
    fn unpack(&mut self, keys: &BTreeSet<u64>) {
        let world = self.world();
        let (gone, kept) = std::mem::take(&mut self.buckets)
            .into_iter()
            .partition(|(_, packed)| packed.parts.iter().any(|part| keys.contains(&part.key)));
        self.buckets = kept;
        for packed in BTreeMap::into_values(gone) {
            packed.residuals(world).for_each(|(key, residual)| self.owe(key, residual));
        }
    }

    fn owe(&mut self, key: u64, residual: Vec<f32>) {
        if !residual.is_empty() {
            self.residuals.insert(key, residual);
        }
    }

    /// Takes the residuals of these parts and joins them; empty if none has a residual.
    fn pack(&mut self, parts: &[Part]) -> Result<Vec<f32>, Error> {
        let size = self.world().size();
        for Part { key, elements } in parts {
            let known = self.residuals.get(key).map(|residual| residual.len());
            if let Some(expected) = known.filter(|known| *known != elements * size) {
                return Err(Error::Invalid(format!(
                    "gradients of place {key} have {} elements, expected {expected}",
                    elements * size
                )));
            }
        }
        if parts.iter().all(|part| !self.residuals.contains_key(&part.key)) {
            return Ok(Vec::new());
        }
        let chunk = elements(parts);
        let mut packed = vec![0.0; size * chunk];
        for (key, range) in ranges(parts) {
            let Some(residual) = self.residuals.remove(&key) else { continue };
            let rows = packed.chunks_exact_mut(chunk).zip(residual.chunks_exact(range.len()));
            rows.for_each(|(row, part)| row[range.clone()].copy_from_slice(part));
        }
        Ok(packed)
    }

    /// Returns the bucket of parameters that travel together.
    fn fresh(&self, dtype: DType, elements: usize, residual: Vec<f32>) -> BucketState {
        let parameter = Parameter { dtype, ..Parameter::new("", &[elements]) };
        let bucket = Bucket::of_one(0, &parameter);
        let raw = self.codec.is_raw();
        let codec = if raw { bucket.raw() } else { Arc::clone(&self.codec) };
        let bucket = Bucket { target: Target::Shard, ..bucket };
        let memory = Memory::new(Feedback::Classic);
        let mut state =
            BucketState::new(bucket, &[parameter], Ranks::all(self.world()), memory, None)
                .waking(self.worker.channel.driver().waker());
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

impl Packed {
    /// Returns the residual of each parameter, by key.
    fn residuals(&self, world: World) -> impl Iterator<Item = (u64, Vec<f32>)> {
        let residual = self.state.residual();
        let chunk = (residual.len() / world.size()).max(1);
        ranges(&self.parts).map(move |(key, range)| {
            let rows = residual.chunks_exact(chunk);
            (key, rows.flat_map(|row| row[range.clone()].to_vec()).collect())
        })
    }
}

/// Returns the number of elements of a chunk that has these parts.
fn elements(parts: &[Part]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.elements))
}

/// Returns the keys of parts and where each is in a chunk.
fn ranges(parts: &[Part]) -> impl Iterator<Item = (u64, Range<usize>)> {
    parts.iter().scan(0, |end, part| {
        let start = *end;
        *end += part.elements;
        Some((part.key, start..*end))
    })
}

fn corrupt(error: thinwire_codec::Error) -> Error {
    Error::Invalid(format!("a peer sent something that is not an encoding: {error}"))
}
