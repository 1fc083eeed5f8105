//! Collectives as runs, to be driven beside others.
//!
//! Each function makes the run of one call; [`crate::operations`] has the same calls blocking. Every
//! rank makes the same calls in the same order; messages between two ranks are counted apart. A rank
//! that hears from one that makes another call at this place fails, and so do all; no result is made of
//! two calls.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{self as schedule, Schedule, Shape};
use thinwire_wire::Rank;

use crate::operations::{Options, partitions, preferred};
use crate::{Address, Error, Group, Program, Run};

/// A run that replaces `values` by their sum over all ranks.
///
/// # Errors
/// If the codec only works with error feedback.
pub fn all_reduce<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    options: &Options,
) -> Result<Run<V>, Error> {
    plain("all_reduce", options.codec.as_ref())?;
    let length = values.as_ref().len();
    let partitions = options.partitions.unwrap_or_else(|| partitions(length)).max(1);
    let shape = Shape { length, block: options.codec.block(), partitions };
    let exchange = options.codec.exchange();
    let algorithm = options.algorithm.unwrap_or_else(|| preferred(exchange, group.world(), length));
    let schedule = schedule::all_reduce(algorithm, group.world(), &shape);
    Ok(call(group, "all_reduce", schedule, values, &options.codec))
}

/// A run that leaves in chunk r of rank r's `values` the sum of that chunk over all ranks; what is in
/// the rest is undefined. All chunks are equally long if `values` divide by the number of ranks.
///
/// # Errors
/// If the codec only works with error feedback.
pub fn reduce_scatter<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    codec: &Arc<dyn Codec>,
) -> Result<Run<V>, Error> {
    plain("reduce_scatter", codec.as_ref())?;
    let shape = Shape { length: values.as_ref().len(), block: 1, partitions: 1 };
    let schedule = schedule::reduce_scatter(group.world(), &shape);
    Ok(call(group, "reduce_scatter", schedule, values, codec))
}

/// A run after which chunk r of everybody's `values` is what rank r had there.
pub fn all_gather<V: AsRef<[f32]> + AsMut<[f32]>>(group: &mut Group, values: V) -> Run<V> {
    let shape = Shape { length: values.as_ref().len(), block: 1, partitions: 1 };
    let schedule = schedule::all_gather(group.world(), &shape);
    call(group, "all_gather", schedule, values, &thinwire_codec::raw())
}

/// A run that replaces `values` of all ranks by those of `root`.
///
/// # Errors
/// If there is no such rank.
pub fn broadcast<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    root: Rank,
) -> Result<Run<V>, Error> {
    member("broadcast", "root", root, group)?;
    let length = values.as_ref().len();
    let shape = Shape { length, block: 1, partitions: partitions(length) };
    let schedule = schedule::broadcast(root, group.world(), &shape);
    let run = call(group, "broadcast", schedule, values, &thinwire_codec::raw());
    Ok(run.called(format!("broadcast from {root}")))
}

/// A run that sends to each rank its part of the first half of `values`, `sends[r]` elements in
/// rank order, and receives theirs into the second half, `recvs[r]` elements each. This rank's part
/// for itself is left to the caller.
///
/// # Panics
/// If there is not one length per rank, or `values` have not their sum.
pub fn all_to_all<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    (sends, recvs): (&[usize], &[usize]),
) -> Run<V> {
    let schedule = schedule::all_to_all(group.world(), sends, recvs);
    call(group, "all_to_all", schedule, values, &thinwire_codec::raw())
}

/// A run that sends `values` to one rank, where [`recv`] with the same `number` awaits them; those of
/// one number arrive in order.
///
/// # Errors
/// If there is no such rank, or it is this one, or the number does not fit into 30 bits.
pub fn send<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    (to, number): (Rank, u32),
) -> Result<Run<V>, Error> {
    other("send", to, group)?;
    let schedule = schedule::send(to, values.as_ref().len());
    let address = group.next_message((group.world().rank(), to), number, "send")?;
    Ok(bound(group, address, schedule, values, &thinwire_codec::raw()))
}

/// A run that receives `values` from one rank: the other end of [`send`].
///
/// # Errors
/// If there is no such rank, or it is this one, or the number does not fit into 30 bits.
pub fn recv<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    values: V,
    (from, number): (Rank, u32),
) -> Result<Run<V>, Error> {
    other("recv", from, group)?;
    let schedule = schedule::recv(from, values.as_ref().len());
    let address = group.next_message((from, group.world().rank()), number, "recv")?;
    Ok(bound(group, address, schedule, values, &thinwire_codec::raw()))
}

/// A run that is done when every rank has started its own. `values` have one element per rank.
pub fn barrier<V: AsRef<[f32]> + AsMut<[f32]>>(group: &mut Group, values: V) -> Run<V> {
    let shape = Shape { length: values.as_ref().len(), block: 1, partitions: 1 };
    let schedule = schedule::all_gather(group.world(), &shape);
    call(group, "barrier", schedule, values, &thinwire_codec::raw())
}

fn call<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &mut Group,
    operation: &'static str,
    schedule: Schedule,
    values: V,
    codec: &Arc<dyn Codec>,
) -> Run<V> {
    let address = group.next_call(operation);
    bound(group, address, schedule, values, codec)
}

fn bound<V: AsRef<[f32]> + AsMut<[f32]>>(
    group: &Group,
    address: Address,
    schedule: Schedule,
    values: V,
    codec: &Arc<dyn Codec>,
) -> Run<V> {
    let program = Program::new(schedule, values.as_ref().len(), Arc::clone(codec));
    Run::new(Arc::new(program), address, group.world(), values, None)
}

fn plain(operation: &'static str, codec: &dyn Codec) -> Result<(), Error> {
    if codec.needs_feedback() {
        let detail = format!("codec {codec} needs error feedback, which a single call has not");
        return Err(Error::invalid(operation, detail));
    }
    Ok(())
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
