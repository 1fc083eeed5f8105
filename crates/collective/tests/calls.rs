//! The law of plain calls: where one rank makes another call than the rest, all ranks fail.
//!
//! Whoever waits for all others fails in the call itself, and no result is made from another call. In a
//! broadcast ranks wait for the root alone, who waits for nobody: they fail in their next call at the
//! latest. Where nobody sends to those who wait (ranks name different roots, or own no chunk of a few
//! elements), the timeout ends all.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use thinwire_codec::{Choice, Codec};
use thinwire_collective::{Error, Group, Options, Run, barrier, start};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::Rank;

/// Enough for every rank to own a chunk, so that everybody hears from everybody.
const LENGTH: usize = 2048;

/// A call, and what it is in words.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    AllReduce(&'static str, bool),
    ReduceScatter,
    AllGather,
    Broadcast(u32),
    AllToAll,
    Barrier,
}

const CALLS: [Call; 9] = [
    Call::AllReduce("none", false),
    Call::AllReduce("none", true),
    Call::AllReduce("int8:stochastic", false),
    Call::ReduceScatter,
    Call::AllGather,
    Call::Broadcast(0),
    Call::Broadcast(1),
    Call::AllToAll,
    Call::Barrier,
];

impl Call {
    fn make(self, group: &mut Group) -> Result<(), Error> {
        let run = self.begin(group)?;
        group.complete(&mut [run])
    }

    fn begin(self, group: &mut Group) -> Result<Run<Vec<f32>>, Error> {
        let (size, values) = (group.world().size(), vec![1.0; LENGTH]);
        match self {
            Call::AllReduce(name, averaged) => {
                let options = Options { codec: codec(name), ..Options::default() };
                let run = start::all_reduce(group, values, &options)?;
                Ok(run.called(format!("all_reduce by {name}, averaged: {averaged}")))
            }
            Call::ReduceScatter => start::reduce_scatter(group, values, &codec("none")),
            Call::AllGather => Ok(start::all_gather(group, values)),
            Call::Broadcast(root) => start::broadcast(group, values, Rank(root)),
            Call::AllToAll => {
                let parts = vec![1; size];
                Ok(start::all_to_all(group, vec![1.0; 2 * size], &parts, &parts))
            }
            Call::Barrier => Ok(start::barrier(group, vec![0.0; size])),
        }
    }

    /// Whether what a rank gets depends on what all others give.
    fn waits_for_all(self) -> bool {
        !matches!(self, Call::Broadcast(_))
    }
}

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name) {
        Ok(Choice::Bytes(codec)) => codec,
        other => panic!("{name} is {other:?}"),
    }
}

fn check(network: Network, size: usize, culprit: usize, usual: Call, other: Call) {
    let silence = !usual.waits_for_all() && !other.waits_for_all();
    let timeout = if silence { Duration::from_millis(100) } else { Duration::from_secs(60) };
    let ended = testkit::spawn(network, size, |link| {
        let group = &mut Group::new(link).with_timeout(timeout);
        let call = if group.world().rank().index() == culprit { other } else { usual };
        let first = call.make(group);
        let second = barrier(group);
        (call, first.err(), second.err().map(|error| error.to_string()))
    });
    for (rank, (call, first, second)) in ended.into_iter().enumerate() {
        let case = format!("{usual:?}, rank {culprit} of {size} {other:?}, rank {rank}");
        assert!(first.is_some() || !call.waits_for_all(), "{case} has a result");
        let said = second.unwrap_or_else(|| panic!("{case} continues"));
        assert!(said.contains("calls differ") || silence, "{case} hears {said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn who_makes_another_call_ends_all(
        size in 2_usize..6,
        culprit in 0_usize..5,
        usual in prop::sample::select(CALLS.to_vec()),
        other in prop::sample::select(CALLS.to_vec()),
    ) {
        prop_assume!(usual != other);
        check(Network::Mem, size, culprit % size, usual, other);
    }
}

#[test]
fn every_network_carries_which_call_it_is() {
    for network in Network::ALL {
        check(network, 2, 1, CALLS[0], CALLS[1]);
        check(network, 3, 0, CALLS[6], CALLS[5]);
    }
}
