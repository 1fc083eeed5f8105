//! A group's reaction to a stream of bytes from a peer, without a link, for fuzz targets and tests.

use std::sync::Arc;

use thinwire_codec::{Choice, Codec};
use thinwire_link::tcp;
use thinwire_schedule::{Algorithm, Shape, all_reduce};
use thinwire_wire::{Rank, World};

use crate::buffer::Pool;
use crate::error::CALLS;
use crate::group::PortAdapter;
use crate::inbox::Inbox;
use crate::{Address, Error, Program, Run};

/// The outcome of a stream.
#[derive(Debug)]
pub struct Replay {
    /// The error that would have ended the group, if any.
    pub outcome: Result<(), thinwire_link::Error>,
    /// The charge of messages that no run awaits, in bytes.
    pub charged_bytes: usize,
    /// Whether everything that the runs await was received.
    pub is_done: bool,
}

/// Takes in `bytes` as data frames that rank 1 of three sends to rank 0, in pieces of at most
/// `piece_bytes`. Meanwhile rank 0 runs a raw and an encoded all-reduce: the call numbered 1, and bucket
/// 0 of step 5.
pub fn replay(bytes: &[u8], piece_bytes: usize) -> Replay {
    let (mut inbox, mut pool) = (Inbox::new(3), Pool::default());
    let mut runs = runs();
    let mut adapter = PortAdapter::new(&mut runs, &mut inbox, &mut pool, CALLS | 1);
    let outcome = tcp::replay(bytes, piece_bytes, Rank(1), &mut adapter);
    let computed: Result<(), Error> = runs.iter_mut().try_for_each(|run| {
        while run.compute(&mut pool, std::task::Waker::noop())? {}
        Ok(())
    });
    let outcome = outcome.and_then(|()| computed.map_err(|error| error.for_peers()));
    let is_done = runs.iter().all(|run| !run.awaited().contains(&Rank(1)));
    Replay { outcome, charged_bytes: inbox.charged_bytes(), is_done }
}

/// Returns the runs of rank 0.
fn runs() -> [Run<Vec<f32>>; 2] {
    let world = World::new(0, 3).expect("rank 0 is in a world of three");
    let Ok(Choice::Bytes(int8)) = Choice::parse("int8:stochastic") else {
        unreachable!("a built-in codec that makes bytes")
    };
    let run = |codec: Arc<dyn Codec>, step, tensor| {
        let shape = Shape { length: 600, block: codec.block(), partitions: 1 };
        let schedule = all_reduce(Algorithm::TwoShot, world, &shape);
        let program = Arc::new(Program::new(schedule, 600, codec));
        let address = Address { step, tensor, seed: 0, operation: "all_reduce" };
        Run::new(program, address, world, vec![1.0; 600], None)
    };
    let tensor = thinwire_wire::checksum(b"all_reduce");
    [run(thinwire_codec::raw(), CALLS | 1, tensor), run(int8, 5, 0)]
}
