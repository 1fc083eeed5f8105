//! Collectives on addresses: the checks before ranks meet, the beginning of the run, and the end of its
//! buffer.

use std::sync::Arc;

use thinwire_collective::{
    Buffer as _, Driver, Error, FailedRun, Group, Next, Options, Run, start,
};
use thinwire_wire::{DType, Rank, World};

use crate::arguments::{bytes_codec, parse_dtype};
use crate::error::Failure;
use crate::memory::{Buffer, Memory};
use crate::metrics::Sent;

/// Function that is called with the result of a call.
pub(crate) type Reply = Box<dyn FnOnce(Result<(), Failure>) + Send>;

type Begun = Result<Run<Buffer>, Error>;

/// A call that is ready to be made.
pub(crate) struct Call {
    begin: Box<dyn FnOnce(&mut Group) -> Begun + Send>,
    /// Takes the buffer of the run before the caller learns that the run is done.
    end: Box<dyn FnOnce(Buffer) + Send>,
    /// Description of the call, if all ranks must make the same one.
    words: Option<String>,
}

impl Call {
    fn new(
        begin: impl FnOnce(&mut Group) -> Begun + Send + 'static,
        end: impl FnOnce(Buffer) + Send + 'static,
    ) -> Call {
        Call { begin: Box::new(begin), end: Box::new(end), words: None }
    }

    /// Describes the call: with `words`, or with the caller's own description.
    fn called(self, words: String, given: Option<String>) -> Call {
        Call { words: given.or(Some(words)), ..self }
    }

    /// Counts the bytes that earlier calls have sent.
    pub(crate) fn counted(self, sent: &Arc<Sent>) -> Call {
        let (begin, sent) = (self.begin, Arc::clone(sent));
        let begin = Box::new(move |group: &mut Group| {
            sent.note(group.counters().sent_bytes);
            begin(group)
        });
        Call { begin, ..self }
    }

    /// Begins the run on the communication thread, and replies when it is done.
    pub(crate) fn make(self, driver: &Driver<Buffer>, reply: Reply) {
        let Call { begin, end, words } = self;
        driver.run(move |group| match group.and_then(begin) {
            Ok(run) => {
                let run = match words {
                    Some(words) => run.called(words),
                    None => run,
                };
                let then = move |run: Result<Run<Buffer>, FailedRun<Buffer>>| {
                    let run = run.map_err(|broken| Failure::from(broken.error));
                    reply(run.map(|run| end(run.into_parts().0)));
                    Next::End
                };
                Next::Run(run, Box::new(then))
            }
            Err(error) => {
                reply(Err(error.into()));
                Next::End
            }
        });
    }
}

/// Algorithm and dtype of a sum, and whether it is an average.
pub(crate) struct Sum<'a> {
    pub(crate) dtype: &'a str,
    pub(crate) codec: &'a str,
    pub(crate) average: bool,
    /// Name of the call in errors.
    pub(crate) call: Option<String>,
}

impl Sum<'_> {
    fn scale(&self, world: World) -> f32 {
        if self.average { 1.0 / world.size() as f32 } else { 1.0 }
    }

    /// Describes an operation on this many elements.
    fn words(&self, operation: &str, elements: usize) -> String {
        let Sum { dtype, codec, average, .. } = self;
        let averaged = if *average { ", averaged" } else { "" };
        format!("{operation} of {elements} {dtype} by {codec}{averaged}")
    }
}

/// Sums `elements` at `address`, in place.
pub(crate) fn all_reduce(
    world: World,
    address: usize,
    elements: usize,
    sum: Sum<'_>,
) -> Result<Call, Failure> {
    let dtype = parse_dtype(sum.dtype)?;
    let memory = Memory::of(address, elements, dtype)?;
    let codec = bytes_codec(sum.codec, dtype)?;
    let options = Options { codec, ..Options::default() }.of(dtype);
    let scale = sum.scale(world);
    let begin =
        move |group: &mut Group| start::all_reduce(group, scaled(memory, dtype, scale), &options);
    let call = Call::new(begin, move |buffer| reclaim(memory, dtype, &buffer));
    Ok(call.called(sum.words("all_reduce", elements), sum.call))
}

/// Sums this rank's chunk of `source`, which has `elements` per rank, into `target`.
pub(crate) fn reduce_scatter(
    world: World,
    (source, target): (usize, usize),
    elements: usize,
    sum: Sum<'_>,
) -> Result<Call, Failure> {
    let dtype = parse_dtype(sum.dtype)?;
    let source = Memory::of(source, elements.saturating_mul(world.size()), dtype)?;
    let mut target = Memory::of(target, elements, dtype)?;
    let (codec, scale) = (bytes_codec(sum.codec, dtype)?, sum.scale(world));
    let mine = world.rank().index() * elements;
    let begin =
        move |group: &mut Group| start::reduce_scatter(group, scaled(source, dtype, scale), &codec);
    let call = Call::new(begin, move |buffer| {
        target.write(dtype, &buffer.values()[mine..mine + elements]);
    });
    Ok(call.called(sum.words("reduce_scatter", elements), sum.call))
}

/// Gathers `bytes` of every rank into `target`, in rank order.
pub(crate) fn all_gather(
    world: World,
    (source, target): (usize, usize),
    bytes: usize,
    call: Option<String>,
) -> Result<Call, Failure> {
    let (size, mine) = (world.size(), world.rank().index());
    let source = Memory::new(source, bytes)?;
    let target = Memory::new(target, bytes.saturating_mul(size))?;
    let begin = move |group: &mut Group| {
        target.part(mine * bytes, bytes).copy_from(source);
        Ok(start::all_gather(group, Buffer::BorrowedBytes(target)))
    };
    let gather = Call::new(begin, drop);
    Ok(gather.called(format!("all_gather of {bytes} bytes"), call))
}

/// Sends each rank its part of `source`, and receives theirs into `target`, in rank order. Lengths may
/// differ between ranks, so only the caller can describe the call.
pub(crate) fn all_to_all(
    world: World,
    (source, sends): (usize, Vec<usize>),
    (target, recvs): (usize, Vec<usize>),
    words: Option<String>,
) -> Result<Call, Failure> {
    let mine = world.rank().index();
    check_lengths(world, &sends, &recvs)?;
    let total = |lengths: &[usize]| lengths.iter().copied().fold(0, usize::saturating_add);
    let source = Memory::new(source, total(&sends))?;
    let target = Memory::new(target, total(&recvs))?;
    let start_of = |lengths: &[usize]| total(&lengths[..mine]);
    let own = source.part(start_of(&sends), sends[mine]);
    let mut place = target.part(start_of(&recvs), recvs[mine]);
    let mut target = target;
    let begin = move |group: &mut Group| {
        let mut bytes = source.bytes().to_vec();
        bytes.resize(bytes.len() + total(&recvs), 0);
        Ok(start::all_to_all(group, Buffer::Bytes(bytes), &sends, &recvs))
    };
    let call = Call::new(begin, move |buffer| {
        let (_, received) = buffer.bytes().split_at(source.bytes().len());
        target.bytes_mut().copy_from_slice(received);
        place.copy_from(own);
    });
    Ok(Call { words, ..call })
}

/// Refuses lengths if there is not one for each rank, or this rank sends itself another length than it
/// receives.
fn check_lengths(world: World, sends: &[usize], recvs: &[usize]) -> Result<(), Failure> {
    let (size, mine) = (world.size(), world.rank().index());
    if let Some(wrong) = [sends, recvs].into_iter().find(|lengths| lengths.len() != size) {
        let found = wrong.len();
        return Err(Failure::invalid(format!(
            "all_to_all with {found} lengths, expected one for each of {size} ranks"
        )));
    }
    if sends[mine] != recvs[mine] {
        let (sent, received) = (sends[mine], recvs[mine]);
        return Err(Failure::invalid(format!(
            "all_to_all sends {sent} bytes to this rank itself, and receives {received} from it"
        )));
    }
    Ok(())
}

/// Copies the bytes of `root` to all ranks.
pub(crate) fn broadcast(
    address: usize,
    bytes: usize,
    root: Rank,
    call: Option<String>,
) -> Result<Call, Failure> {
    let memory = Memory::new(address, bytes)?;
    let begin =
        move |group: &mut Group| start::broadcast(group, Buffer::BorrowedBytes(memory), root);
    let copy = Call::new(begin, drop);
    Ok(copy.called(format!("broadcast of {bytes} bytes from {root}"), call))
}

/// Sends to one rank, by number.
pub(crate) fn send(address: usize, bytes: usize, to: Rank, tag: u32) -> Result<Call, Failure> {
    let memory = Memory::new(address, bytes)?;
    Ok(Call::new(
        move |group: &mut Group| start::send(group, Buffer::BorrowedBytes(memory), to, tag),
        drop,
    ))
}

/// Receives from one rank, by number.
pub(crate) fn recv(address: usize, bytes: usize, from: Rank, tag: u32) -> Result<Call, Failure> {
    let memory = Memory::new(address, bytes)?;
    let begin =
        move |group: &mut Group| start::recv(group, Buffer::BorrowedBytes(memory), from, tag);
    Ok(Call::new(begin, drop))
}

/// Returns a call that is done when every rank has made it.
pub(crate) fn barrier(world: World) -> Call {
    let size = world.size();
    Call::new(move |group| Ok(start::barrier(group, Buffer::Bytes(vec![0; size]))), drop)
}

/// Returns the call of ranks that are about to make connections with this name.
pub(crate) fn connecting(world: World, name: &str) -> Call {
    barrier(world).called(format!("the connections of a {name}"), None)
}

/// Returns a tensor times `scale`; in place if it has f32.
fn scaled(mut memory: Memory, dtype: DType, scale: f32) -> Buffer {
    if dtype != DType::F32 {
        let mut values = memory.to_f32(dtype);
        values.iter_mut().for_each(|value| *value *= scale);
        return Buffer::Values(values);
    }
    if scale != 1.0 {
        memory.scale(scale);
    }
    Buffer::BorrowedValues(memory)
}

fn reclaim(mut memory: Memory, dtype: DType, buffer: &Buffer) {
    if let Buffer::Values(values) = buffer {
        memory.write(dtype, values);
    }
}
