//! Blocking collectives on plain buffers.
//!
//! Every rank of the group makes the same calls in the same order, with buffers of the same length; if
//! lengths differ, peers notice it and the error has both. All calls return the same bits on all ranks.

mod hand_over;

use thinwire_schedule::Shape;
pub use thinwire_schedule::{carries, partitions, preferred};
use thinwire_wire::Rank;

pub use self::hand_over::hand_over;
use crate::{Element, Error, Group, Number, Options, start};

/// Replaces `values` by their sum over all ranks. Values of 16 bits are summed in f32, and the sum is
/// rounded once.
///
/// # Errors
/// If the codec only works with error feedback, or a peer is lost or disagrees.
pub fn all_reduce<T: Number>(
    group: &mut Group,
    values: &mut [T],
    options: &Options,
) -> Result<(), Error> {
    let options = options.of(T::SUM);
    T::as_f32(values, |values| {
        let run = start::all_reduce(group, values, &options)?;
        group.complete(&mut [run])
    })
}

/// Replaces every tensor by its sum over all ranks; many small tensors travel as one.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_reduce_many<T: Number>(
    group: &mut Group,
    tensors: &mut [&mut [T]],
    options: &Options,
) -> Result<(), Error> {
    let mut joined = Vec::with_capacity(tensors.iter().map(|tensor| tensor.len()).sum());
    for tensor in tensors.iter() {
        joined.extend_from_slice(tensor);
    }
    all_reduce(group, &mut joined, options)?;
    let mut rest = joined.as_slice();
    for tensor in tensors {
        let (sum, after) = rest.split_at(tensor.len());
        tensor.copy_from_slice(sum);
        rest = after;
    }
    Ok(())
}

/// Sums `values` over all ranks. The sum is left in this rank's chunk of `values`, whose range is
/// returned; the rest is undefined. Values of 16 bits are summed in f32, and the sum is rounded once.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_scatter<T: Number>(
    group: &mut Group,
    values: &mut [T],
) -> Result<std::ops::Range<usize>, Error> {
    let (world, length) = (group.world(), values.len());
    T::as_f32(values, |values| {
        let run = start::reduce_scatter(group, values, &thinwire_codec::raw_of(T::SUM))?;
        group.complete(&mut [run])
    })?;
    let shape = Shape { length, block: 1, partitions: 1 };
    Ok(shape.chunk(0, world.size(), world.rank().index()))
}

/// Returns the elements of every rank, in rank order. All ranks give the same number of elements.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather<T: Element>(group: &mut Group, mine: &[T]) -> Result<Vec<T>, Error> {
    let world = group.world();
    let mut values = vec![T::zeroed(); mine.len() * world.size()];
    values[world.rank().index() * mine.len()..][..mine.len()].copy_from_slice(mine);
    let run = start::all_gather(group, values.as_mut_slice());
    group.complete(&mut [run])?;
    Ok(values)
}

/// Returns the bytes of every rank, in rank order; lengths may differ.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather_bytes(group: &mut Group, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let lengths = all_gather(group, &(mine.len() as u32).to_le_bytes())?;
    let (lengths, _) = lengths.as_chunks();
    let lengths: Vec<usize> = lengths.iter().map(|it| u32::from_le_bytes(*it) as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut padded = mine.to_vec();
    padded.resize(longest, 0);
    let all = all_gather(group, &padded)?;
    let of_rank = |(rank, length): (usize, usize)| all[rank * longest..][..length].to_vec();
    Ok(lengths.into_iter().enumerate().map(of_rank).collect())
}

/// Replaces `values` of all ranks by those of `root`.
///
/// # Errors
/// As [`all_reduce`].
pub fn broadcast<T: Element>(group: &mut Group, values: &mut [T], root: Rank) -> Result<(), Error> {
    let run = start::broadcast(group, values, root)?;
    group.complete(&mut [run])
}

/// Returns the bytes of `root`, of any length up to `bytes_max`, on every rank; the bytes of other
/// ranks are ignored.
///
/// # Errors
/// As [`all_reduce`], or if the bytes of `root` are longer.
pub fn broadcast_bytes(
    group: &mut Group,
    mine: &[u8],
    root: Rank,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    let mut length = (mine.len() as u32).to_le_bytes();
    broadcast(group, &mut length, root)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        let detail = format!("{length} bytes from {root}, expected at most {bytes_max}");
        return Err(Error::invalid("broadcast", detail));
    }
    let mut bytes = vec![0; length];
    if group.world().rank() == root {
        bytes.copy_from_slice(mine);
    }
    broadcast(group, &mut bytes, root)?;
    Ok(bytes)
}

/// Sends to each rank r its part of the first half of `values`: `sends[r]` elements, in rank order.
/// Receives `recvs[r]` elements from each rank r into the second half, also in rank order. The
/// caller copies this rank's part for itself.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_to_all<T: Element>(
    group: &mut Group,
    values: &mut [T],
    sends: &[usize],
    recvs: &[usize],
) -> Result<(), Error> {
    let run = start::all_to_all(group, values, sends, recvs);
    group.complete(&mut [run])
}

/// Returns when every rank has called it.
///
/// # Errors
/// As [`all_reduce`].
pub fn barrier(group: &mut Group) -> Result<(), Error> {
    let run = start::barrier(group, vec![0_u8; group.world().size()]);
    group.complete(&mut [run])
}
