//! The laws of a hand-over: joiners get the holders' bytes over every network, and what cannot be handed over
//! is the same error on all ranks.

use std::time::Duration;

use proptest::prelude::*;
use thinwire_collective::{Error, Group, Kind, barrier, hand_over};
use thinwire_testkit::{self as testkit, Network};
use thinwire_wire::Rank;

fn spawn<T: Send>(network: Network, size: usize, body: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    testkit::spawn(network, size, |link| body(&mut Group::new(link)))
}

fn state(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn check(network: Network, holders: usize, joiners: usize, length: usize) {
    let expected = state(length);
    let found = spawn(network, holders + joiners, |group| {
        let holds = group.world().rank().index() < holders;
        let given = holds.then(|| expected.clone());
        let memory = given.as_ref().map(|given| given.as_ptr());
        let result = hand_over(group, holders as u32, given).unwrap();
        assert!(memory.is_none_or(|memory| memory == result.as_ptr()), "holders copy nothing");
        result
    });
    for (rank, found) in found.into_iter().enumerate() {
        assert!(found == expected, "{holders} to {joiners}, {length} bytes, rank {rank}");
    }
}

#[test]
fn joiners_get_the_bytes_of_the_holders() {
    for (holders, joiners) in (1..=6).flat_map(|holders| (0..=6).map(move |j| (holders, j))) {
        for length in [0, 1, 127, 40_009] {
            check(Network::Mem, holders, joiners, length);
        }
    }
}

#[test]
fn every_network_hands_over() {
    for network in Network::ALL {
        for (holders, joiners) in [(1, 1), (1, 3), (2, 1), (3, 2), (2, 4)] {
            check(network, holders, joiners, 3_000_017);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_bytes_are_handed_over(holders in 1_usize..7, joiners in 0_usize..7, length in 0_usize..300_000) {
        check(Network::Mem, holders, joiners, length);
    }
}

#[test]
fn one_rank_takes_over_from_two_whichever_comes_first() {
    let (first, second) = (state(1000), state(2000));
    let found = spawn(Network::Mem, 3, |group| {
        let rank = group.world().rank().index();
        let mut pair = |leaver: usize, state: Option<&Vec<u8>>| {
            let members = [leaver as u32, 0].map(Rank).into();
            group
                .among(&members, |pair| hand_over(pair, 1, state.cloned()))
                .map_err(|error| error.to_string())
        };
        match rank {
            0 => vec![pair(1, None), pair(2, None)],
            1 => {
                // Rank 0 hears of rank 2 while it waits for this one.
                std::thread::sleep(Duration::from_millis(200));
                vec![pair(1, Some(&first))]
            }
            _ => vec![pair(2, Some(&second))],
        }
    });
    assert_eq!(found[0], [Ok(first), Ok(second)], "each state arrives in the call for it");
}

/// Errors of ranks that give `states`, each of which leaves the group as it was.
fn errors(holders: u32, states: &[Option<&[u8]>]) -> Vec<String> {
    spawn(Network::Mem, states.len(), |group| {
        let given = states[group.world().rank().index()].map(<[u8]>::to_vec);
        let error = hand_over(group, holders, given).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        barrier(group).unwrap();
        error.to_string()
    })
}

#[test]
fn holders_that_differ_are_named_on_all_ranks() {
    let text = "holders differ: rank 1 gives 3 bytes with checksum ec40ca13, \
        rank 0 4 bytes with checksum 9be3e0a3 (in hand_over)";
    assert_eq!(errors(2, &[Some(b"1234"), Some(b"567"), None]), vec![text; 3]);
    let found = errors(3, &[Some(b"same"), Some(b"same"), Some(b"some")]);
    assert!(found[1].contains("rank 2 gives 4 bytes with checksum"), "{found:?}");
}

#[test]
fn bytes_of_the_wrong_ranks_are_named_on_all_ranks() {
    let found = errors(2, &[Some(b"1"), None, None]);
    assert_eq!(
        found,
        vec!["rank 1 gives no bytes, expected the bytes of a holder (in hand_over)"; 3]
    );
    let found = errors(1, &[Some(b"1"), None, Some(b"")]);
    let text = "rank 2 gives 0 bytes with checksum 00000000, \
        expected none: the first 1 ranks are the holders (in hand_over)";
    assert_eq!(found, vec![text; 3]);
}

#[test]
fn there_is_a_holder_among_the_ranks() {
    for holders in [0, 3] {
        let refusals = spawn(Network::Mem, 2, |group| {
            let refused = hand_over(group, holders, None).unwrap_err();
            barrier(group).unwrap();
            refused.to_string()
        });
        let text = format!("{holders} holders, expected 1 to 2 of 2 ranks (in hand_over)");
        assert_eq!(refusals, vec![text; 2]);
    }
}

#[test]
fn ranks_that_count_other_holders_end_all() {
    let ended = spawn(Network::Mem, 3, |group| -> Result<(), Error> {
        let rank = group.world().rank().0;
        let holders = if rank == 2 { 2 } else { 1 };
        hand_over(group, holders, (rank == 0).then(|| vec![1; 9]))?;
        barrier(group)
    });
    for error in ended {
        assert!(error.unwrap_err().to_string().contains("calls differ"));
    }
}
