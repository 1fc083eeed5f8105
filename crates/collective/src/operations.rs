//! Blocking collectives on plain buffers.
//!
//! Every rank of the group makes the same calls in the same order, with buffers of the same
//! length; a difference in length is found by the peers and named. All of them return the same bits
//! on all ranks.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule::{Algorithm, Shape};
pub use thinwire_schedule::{carries, partitions, preferred};
use thinwire_wire::Rank;

use crate::{Error, Group, start};

/// How an all-reduce is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who sends what to whom; chosen by [`preferred`] if there is none.
    pub algorithm: Option<Algorithm>,
    /// What the values are encoded with. Here without error feedback, which `sync` adds.
    pub codec: Arc<dyn Codec>,
    /// The number of pipelined partitions; chosen by size if there is none.
    pub partitions: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { algorithm: None, codec: thinwire_codec::raw(), partitions: None }
    }
}

/// Replaces `values` by their sum over all ranks.
///
/// # Errors
/// If the codec only works with error feedback, or a peer is lost or disagrees.
pub fn all_reduce(group: &mut Group, values: &mut [f32], options: &Options) -> Result<(), Error> {
    let run = start::all_reduce(group, values, options)?;
    group.complete(&mut [run])
}

/// Replaces every tensor by its sum over all ranks; many small ones travel as one.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_reduce_many(
    group: &mut Group,
    tensors: &mut [&mut [f32]],
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

/// Sums `values` over all ranks and leaves in my chunk of them, whose range is returned, the sum;
/// the rest of `values` is undefined.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_scatter(
    group: &mut Group,
    values: &mut [f32],
) -> Result<std::ops::Range<usize>, Error> {
    let (world, length) = (group.world(), values.len());
    let run = start::reduce_scatter(group, values, &thinwire_codec::raw())?;
    group.complete(&mut [run])?;
    let shape = Shape { length, block: 1, partitions: 1 };
    Ok(shape.chunk(0, world.size(), world.rank().index()))
}

/// The values of every rank, in rank order. All ranks give equally many.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather(group: &mut Group, mine: &[f32]) -> Result<Vec<f32>, Error> {
    let world = group.world();
    let mut values = vec![0.0; mine.len() * world.size()];
    values[world.rank().index() * mine.len()..][..mine.len()].copy_from_slice(mine);
    let run = start::all_gather(group, values.as_mut_slice());
    group.complete(&mut [run])?;
    Ok(values)
}

/// The bytes of every rank, in rank order, of any lengths.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather_bytes(group: &mut Group, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let length = f32::from_bits(mine.len() as u32);
    let lengths: Vec<usize> =
        all_gather(group, &[length])?.iter().map(|length| length.to_bits() as usize).collect();
    let words = lengths.iter().max().map_or(0, |longest| longest.div_ceil(4));
    let mut padded = vec![0_f32; words];
    bytemuck::cast_slice_mut(&mut padded)[..mine.len()].copy_from_slice(mine);
    let gathered = all_gather(group, &padded)?;
    let bytes: &[u8] = bytemuck::cast_slice(&gathered);
    Ok(lengths
        .iter()
        .enumerate()
        .map(|(rank, &length)| bytes[rank * words * 4..][..length].to_vec())
        .collect())
}

/// Replaces `values` of all ranks by those of `root`.
///
/// # Errors
/// As [`all_reduce`].
pub fn broadcast(group: &mut Group, values: &mut [f32], root: Rank) -> Result<(), Error> {
    let run = start::broadcast(group, values, root)?;
    group.complete(&mut [run])
}

/// Sends to each rank its part of the first half of `values`, `sends[r]` elements in rank order,
/// and receives theirs into the second half, `recvs[r]` elements each. This rank's part for itself
/// is left to the caller.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_to_all(
    group: &mut Group,
    values: &mut [f32],
    parts: (&[usize], &[usize]),
) -> Result<(), Error> {
    let run = start::all_to_all(group, values, parts);
    group.complete(&mut [run])
}

/// Returns when every rank has called it.
///
/// # Errors
/// As [`all_reduce`].
pub fn barrier(group: &mut Group) -> Result<(), Error> {
    let run = start::barrier(group, vec![0.0; group.world().size()]);
    group.complete(&mut [run])
}
