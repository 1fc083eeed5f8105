//! The laws of plain messages: all-to-all, sends and receives by number, barriers.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use thinwire_collective::{Error, Group, Kind, all_to_all, barrier, start};
use thinwire_testkit::{self as testkit, Network, ramp};
use thinwire_wire::Rank;

fn spawn<T: Send>(network: Network, size: usize, body: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    testkit::spawn(network, size, |link| body(&mut Group::new(link)))
}

fn send(group: &mut Group, values: Vec<f32>, to: Rank, number: u32) -> Result<(), Error> {
    let run = start::send(group, values, to, number)?;
    group.complete(&mut [run])
}

fn recv(group: &mut Group, length: usize, from: Rank, number: u32) -> Result<Vec<f32>, Error> {
    let mut runs = [start::recv(group, vec![f32::NAN; length], from, number)?];
    group.complete(&mut runs)?;
    Ok(runs[0].values().to_vec())
}

/// What `from` has for `to`: no two parts are alike.
fn part(from: usize, to: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| (i * 64 + from * 8 + to) as f32).collect()
}

/// Exchanges `lengths[from][to]` elements between all ranks, twice.
fn check_all_to_all(network: Network, lengths: &[Vec<usize>]) {
    let size = lengths.len();
    spawn(network, size, |group| {
        let me = group.world().rank().index();
        let sends = lengths[me].clone();
        let recvs: Vec<usize> = lengths.iter().map(|of_rank| of_rank[me]).collect();
        let outgoing: Vec<f32> = (0..size).flat_map(|to| part(me, to, sends[to])).collect();
        for _ in 0..2 {
            let mut values = outgoing.clone();
            values.resize(outgoing.len() + recvs.iter().sum::<usize>(), -1.0);
            all_to_all(group, &mut values, &sends, &recvs).unwrap();
            assert_eq!(values[..outgoing.len()], outgoing, "what was sent is as it was");
            let mut incoming = &values[outgoing.len()..];
            for (from, &length) in recvs.iter().enumerate() {
                let (found, rest) = incoming.split_at(length);
                let own = vec![-1.0; length];
                let expected = if from == me { own } else { part(from, me, length) };
                assert_eq!(found, expected, "from {from} to {me}");
                incoming = rest;
            }
        }
    });
}

/// A message of a made-up job: from the first rank to the second, by number.
type Message = (usize, usize, u32);

fn messages(size: usize) -> impl Strategy<Value = Vec<Message>> {
    let message = (0..size, 1..size, 0_u32..3)
        .prop_map(move |(from, offset, number)| (from, (from + offset) % size, number));
    prop::collection::vec(message, 0..24)
}

fn content(message: usize) -> Vec<f32> {
    vec![message as f32; 1 + message * 7 % 40]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_to_all_brings_every_part_whatever_the_lengths(
        lengths in (1_usize..6).prop_flat_map(|size| {
            let length = prop_oneof![Just(0_usize), 1_usize..300];
            prop::collection::vec(prop::collection::vec(length, size), size)
        }),
    ) {
        check_all_to_all(Network::Mem, &lengths);
    }

    #[test]
    fn messages_of_one_number_keep_their_order_and_numbers_do_not_mix(messages in messages(3)) {
        spawn(Network::Mem, 3, |group| {
            let me = group.world().rank().index();
            let all = || messages.iter().enumerate();
            for (index, (_, to, number)) in all().filter(|(_, message)| message.0 == me) {
                send(group, content(index), Rank(*to as u32), *number).unwrap();
            }
            // Asked for in another order, all but those of one sender and number.
            let mut mine: Vec<_> = all().filter(|(_, message)| message.1 == me).collect();
            mine.sort_by_key(|(_, (from, _, number))| (2 - number, *from));
            for (index, (from, _, number)) in mine {
                let expected = content(index);
                let from = Rank(*from as u32);
                assert_eq!(recv(group, expected.len(), from, *number).unwrap(), expected);
            }
        });
    }
}

#[test]
fn all_to_all_crosses_every_network() {
    for network in Network::ALL {
        for size in [1, 2, 3, 4, 5] {
            let length = |from: usize, to: usize| (from * 31 + to * 7) % 5 * 40_009;
            let of_rank = |from| (0..size).map(|to| length(from, to)).collect();
            check_all_to_all(network, &(0..size).map(of_rank).collect::<Vec<_>>());
        }
    }
}

#[test]
fn runs_of_both_directions_and_several_numbers_share_a_group() {
    for network in Network::ALL {
        spawn(network, 2, |group| {
            let me = group.world().rank();
            let peer = group.world().after(1);
            let mut runs = Vec::new();
            for number in 0..3 {
                let values = part(me.index(), number as usize, 70_000);
                runs.push(start::send(group, values, peer, number).unwrap());
            }
            for number in (0..3).rev() {
                runs.push(start::recv(group, vec![0.0; 70_000], peer, number).unwrap());
            }
            group.complete(&mut runs).unwrap();
            for (run, number) in runs[3..].iter().zip([2, 1, 0]) {
                assert_eq!(run.values(), part(peer.index(), number, 70_000));
            }
        });
    }
}

#[test]
fn an_empty_message_ends_and_keeps_its_place() {
    spawn(Network::Mem, 2, |group| {
        let me = group.world().rank();
        for length in [0, 5, 0, 3] {
            if me == Rank(0) {
                send(group, ramp(me, length), Rank(1), 0).unwrap();
            } else {
                assert_eq!(recv(group, length, Rank(0), 0).unwrap(), ramp(Rank(0), length));
            }
        }
    });
}

#[test]
fn a_message_of_another_length_is_named_on_both_sides() {
    for network in Network::ALL {
        let errors = spawn(network, 2, |group| {
            let result = match group.world().rank().0 {
                0 => send(group, vec![1.0; 10], Rank(1), 0).and_then(|()| barrier(group)),
                _ => recv(group, 20, Rank(0), 0).map(|_| ()),
            };
            result.unwrap_err().to_string()
        });
        let mismatch = "length mismatch: rank 0 sent 40 bytes, expected 80";
        assert_eq!(errors[1], format!("{mismatch} (in recv)"));
        assert!(errors[0].contains(&format!("rank 1 reports: {mismatch} (in ")), "{}", errors[0]);
    }
}

#[test]
fn parts_of_another_length_are_named() {
    let errors = spawn(Network::Mem, 3, |group| {
        let recvs = if group.world().rank() == Rank(2) { [4, 6, 4] } else { [4; 3] };
        let mut values = vec![0.0; 12 + recvs.iter().sum::<usize>()];
        let result = all_to_all(group, &mut values, &[4; 3], &recvs);
        // The others may be through: the next call tells them.
        result.and_then(|()| barrier(group)).unwrap_err().to_string()
    });
    let mismatch = "length mismatch: rank 1 sent 16 bytes, expected 24";
    assert_eq!(errors[2], format!("{mismatch} (in all_to_all)"));
    assert!(errors.iter().all(|error| error.contains(mismatch)), "{errors:?}");
}

#[test]
fn a_message_to_nobody_is_refused_and_the_group_lives_on() {
    spawn(Network::Mem, 2, |group| {
        let me = group.world().rank();
        let refused = [
            ((me, 0), format!("peer is {me}, which is this rank (in send)")),
            ((Rank(2), 0), "peer is rank 2, expected one of 2 ranks (in send)".to_owned()),
            (
                (group.world().after(1), 1 << 30),
                "message number 1073741824, expected one below 1073741824 (in send)".to_owned(),
            ),
        ];
        for ((to, number), text) in refused {
            let error = send(group, vec![1.0], to, number).unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (Kind::Invalid, text.clone()));
            let error = recv(group, 1, to, number).unwrap_err();
            assert_eq!(error.to_string(), text.replace("send", "recv"));
        }
        barrier(group).unwrap();
        let peer = group.world().after(1);
        let values = ramp(me, 9);
        let last = (1 << 30) - 1;
        send(group, values, peer, last).unwrap();
        assert_eq!(recv(group, 9, peer, last).unwrap(), ramp(peer, 9));
    });
}

#[test]
fn nobody_passes_a_barrier_that_somebody_has_not_reached() {
    for size in [1, 2, 3, 4, 5] {
        let reached = AtomicUsize::new(0);
        spawn(Network::Mem, size, |group| {
            for round in 1..=100 {
                reached.fetch_add(1, Ordering::SeqCst);
                barrier(group).unwrap();
                assert!(reached.load(Ordering::SeqCst) >= round * size, "{size} ranks");
                barrier(group).unwrap();
            }
        });
    }
}
