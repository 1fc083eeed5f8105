//! Collectives as runs, to be driven together with other runs.
//!
//! Each function makes the run of one call; [`crate::operations`] has the same calls blocking. Every
//! rank makes the same calls in the same order; messages between two ranks are counted separately. If a
//! peer makes another call in the place of this one, the call fails on all ranks; the data of two
//! different calls is never combined.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{
    self as schedule, Algorithm, Schedule, Shape, Summation, partitions, preferred,
};
use thinwire_wire::{DType, Rank};

use crate::{Address, Buffer, Error, Group, Program, Run};

/// The options of an all-reduce.
#[derive(Clone, Debug)]
pub struct Options {
    /// The algorithm; if `None`, the size of the data decides.
    pub algorithm: Option<Summation>,
    /// The encoding of the values on the wire. It works without error feedback, which only crate `sync`
    /// has.
    pub codec: Arc<dyn Codec>,
    /// The number of pipelined partitions; if `None`, the size of the data decides.
    pub partitions: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { algorithm: None, codec: thinwire_codec::raw(), partitions: None }
    }
}

impl Options {
    /// Returns these options for values that are `dtype` to the caller and f32 here: without a codec
    /// they travel as `dtype`.
    ///
    /// Values of 16 bits that travel as they are go by two-shot, so that the owner of a chunk sums it in
    /// f32 and rounds the sum once; a ring would round it at every hop.
    #[must_use]
    pub fn of(&self, dtype: DType) -> Options {
        let mut options = self.clone();
        if options.codec.is_raw() {
            options.codec = thinwire_codec::raw_of(dtype);
        }
        if options.codec.dtype() == Some(dtype) && dtype != DType::F32 {
            options.algorithm = options.algorithm.or(Some(Algorithm::TwoShot.into()));
        }
        options
    }
}

/// Returns a run that replaces `values` by their sum over all ranks. In a hierarchical sum, the
/// options' partitions divide the part that one rank of a unit sums with the other units.
///
/// # Errors
/// If the algorithm is for another number of ranks, or the codec only works with error feedback.
pub fn all_reduce<V: Buffer>(
    group: &mut Group,
    values: V,
    options: &Options,
) -> Result<Run<V>, Error> {
    const OPERATION: &str = "all_reduce";
    summable(OPERATION, &values, options.codec.as_ref())?;
    let (world, length) = (group.world(), values.elements());
    let usual = || preferred(options.codec.exchange(), world, length).into();
    let summation: Summation = options.algorithm.unwrap_or_else(usual);
    summation.check(world.size()).map_err(|detail| Error::invalid(OPERATION, detail))?;
    let partitions = options.partitions.unwrap_or_else(|| summation.partitions(length));
    let shape = Shape { length, block: options.codec.block(), partitions: partitions.max(1) };
    let address = group.next_call(OPERATION);
    let run = summing(group, address, summation.all_reduce(world, &shape), values, &options.codec);
    Ok(if summation.unit == 1 { run } else { run.called(summation.to_string()) })
}

/// Returns a run that sums `values` over all ranks and leaves the sum of chunk r on rank r, in chunk r of
/// its `values`; the rest of `values` is undefined. All chunks are equally long if the number of ranks
/// divides the number of values.
///
/// # Errors
/// If the codec only works with error feedback.
pub fn reduce_scatter<V: Buffer>(
    group: &mut Group,
    values: V,
    codec: &Arc<dyn Codec>,
) -> Result<Run<V>, Error> {
    summable("reduce_scatter", &values, codec.as_ref())?;
    let shape = Shape { length: values.elements(), block: 1, partitions: 1 };
    let schedule = schedule::reduce_scatter(group.world(), &shape);
    let address = group.next_call("reduce_scatter");
    Ok(summing(group, address, schedule, values, codec))
}

/// Returns a run after which chunk r of every rank's `values` is the chunk that rank r had before.
pub fn all_gather<V: Buffer>(group: &mut Group, values: V) -> Run<V> {
    gather(group, "all_gather", values)
}

/// Returns a run that replaces `values` of all ranks by those of `root`.
///
/// # Errors
/// If there is no such rank.
pub fn broadcast<V: Buffer>(group: &mut Group, values: V, root: Rank) -> Result<Run<V>, Error> {
    member("broadcast", "root", root, group)?;
    let partitions = partitions(values.bytes().len().div_ceil(size_of::<f32>()));
    let shape = Shape { length: values.elements(), block: 1, partitions };
    let schedule = schedule::broadcast(root, group.world(), &shape);
    let address = group.next_call("broadcast");
    let run = moving(group, address, schedule, values);
    Ok(run.called(format!("broadcast from {root}")))
}

/// Returns a run after which all ranks have the values of the first `holders` ranks. These ranks must
/// have equal values.
///
/// # Errors
/// If there are no holders, or more holders than ranks.
pub fn hand_over<V: Buffer>(group: &mut Group, values: V, holders: u32) -> Result<Run<V>, Error> {
    let count = self::holders("hand_over", holders, group)?;
    let (world, bytes) = (group.world(), values.bytes().len());
    let partitions = schedule::hand_over_partitions(count, world, bytes);
    let shape = Shape { length: values.elements(), block: 1, partitions };
    let schedule = schedule::hand_over(count, world, &shape);
    let address = group.next_call("hand_over");
    let run = moving(group, address, schedule, values);
    Ok(run.called(format!("hand_over of {bytes} bytes by {holders} holders")))
}

/// Returns a run that sends to each rank r its part of the first half of `values`, `sends[r]` elements
/// in rank order, and receives `recvs[r]` elements from each rank r into the second half, also in rank
/// order. The caller copies this rank's part for itself.
///
/// # Panics
/// If there is not one length per rank, or the length of `values` is not their sum.
pub fn all_to_all<V: Buffer>(
    group: &mut Group,
    values: V,
    sends: &[usize],
    recvs: &[usize],
) -> Run<V> {
    let schedule = schedule::all_to_all(group.world(), sends, recvs);
    let address = group.next_call("all_to_all");
    moving(group, address, schedule, values)
}

/// Returns a run that sends `values` to one rank, where [`recv`] with the same `number` awaits them.
/// Messages with the same number arrive in order.
///
/// # Errors
/// If there is no such rank, or it is this one, or the number does not fit into 30 bits.
pub fn send<V: Buffer>(
    group: &mut Group,
    values: V,
    to: Rank,
    number: u32,
) -> Result<Run<V>, Error> {
    other("send", to, group)?;
    let schedule = schedule::send(to, values.elements());
    let address = group.next_message(group.world().rank(), to, number, "send")?;
    Ok(moving(group, address, schedule, values))
}

/// Returns a run that receives `values` from one rank: the other end of [`send`].
///
/// # Errors
/// If there is no such rank, or it is this one, or the number does not fit into 30 bits.
pub fn recv<V: Buffer>(
    group: &mut Group,
    values: V,
    from: Rank,
    number: u32,
) -> Result<Run<V>, Error> {
    other("recv", from, group)?;
    let schedule = schedule::recv(from, values.elements());
    let address = group.next_message(from, group.world().rank(), number, "recv")?;
    Ok(moving(group, address, schedule, values))
}

/// Returns a run that is done when every rank has started its own. `values` have one element per rank.
pub fn barrier<V: Buffer>(group: &mut Group, values: V) -> Run<V> {
    gather(group, "barrier", values)
}

fn gather<V: Buffer>(group: &mut Group, operation: &'static str, values: V) -> Run<V> {
    let shape = Shape { length: values.elements(), block: 1, partitions: 1 };
    let schedule = schedule::all_gather(group.world(), &shape);
    let address = group.next_call(operation);
    moving(group, address, schedule, values)
}

/// Returns a run that moves elements as they are.
fn moving<V: Buffer>(group: &Group, address: Address, schedule: Schedule, values: V) -> Run<V> {
    let program = Program::moving(group.bind(schedule), values.elements(), values.dtype());
    Run::new(Arc::new(program), address, group.world(), values, None)
}

/// Returns a run that sums f32.
fn summing<V: Buffer>(
    group: &Group,
    address: Address,
    schedule: Schedule,
    values: V,
    codec: &Arc<dyn Codec>,
) -> Run<V> {
    let program = Program::new(group.bind(schedule), values.elements(), Arc::clone(codec));
    Run::new(Arc::new(program), address, group.world(), values, None)
}

fn summable(operation: &'static str, values: &impl Buffer, codec: &dyn Codec) -> Result<(), Error> {
    if values.dtype() != Some(DType::F32) {
        let found = values.dtype().map_or("bytes", DType::name);
        return Err(Error::invalid(operation, format!("a sum of {found}, expected f32")));
    }
    if codec.needs_feedback() {
        let detail =
            format!("codec {codec} needs error feedback, which a single call does not have");
        return Err(Error::invalid(operation, detail));
    }
    Ok(())
}

/// Returns the number of holders, which are the first ranks.
pub(crate) fn holders(
    operation: &'static str,
    holders: u32,
    group: &Group,
) -> Result<usize, Error> {
    let (count, size) = (holders as usize, group.world().size());
    if !(1..=size).contains(&count) {
        let detail = format!("{holders} holders, expected 1 to {size} of {size} ranks");
        return Err(Error::invalid(operation, detail));
    }
    Ok(count)
}

fn member(operation: &'static str, what: &str, rank: Rank, group: &Group) -> Result<(), Error> {
    let size = group.world().size();
    if rank.index() >= size {
        let detail = format!("{what} is {rank}, expected one of {size} ranks");
        return Err(Error::invalid(operation, detail));
    }
    Ok(())
}

fn other(operation: &'static str, peer: Rank, group: &Group) -> Result<(), Error> {
    member(operation, "peer", peer, group)?;
    if peer == group.world().rank() {
        return Err(Error::invalid(operation, format!("peer is {peer}, which is this rank")));
    }
    Ok(())
}
