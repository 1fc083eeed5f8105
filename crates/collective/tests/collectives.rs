//! The laws of collectives, over every algorithm and codec, world sizes and lengths.

use std::sync::Arc;

use thinwire_codec::{Choice, Codec};
use thinwire_collective::{
    Address, Group, Options, all_gather, all_gather_bytes, all_reduce, all_reduce_many, barrier,
    broadcast, reduce_scatter, start,
};
use thinwire_link::{Place, Port, mem};
use thinwire_schedule::Algorithm;
use thinwire_testkit::{self as testkit, Network, ramp, ramp_sum};
use thinwire_wire::{DType, Header, Kind, Rank, Tag};

/// Runs `body` on every rank of a group; the results in rank order.
fn spawn_on<T: Send>(
    network: Network,
    size: usize,
    body: impl Fn(&mut Group) -> T + Sync,
) -> Vec<T> {
    testkit::spawn(network, size, |link| body(&mut Group::new(link)))
}

fn spawn<T: Send>(size: usize, body: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    spawn_on(Network::Mem, size, body)
}

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name).unwrap() {
        Choice::Bytes(codec) => codec,
        Choice::LowRank(_) | Choice::Integers(_) => panic!("{name} is not a codec of bytes"),
    }
}

fn check(network: Network, size: usize, length: usize, options: &Options, tolerance: f64) {
    let results = spawn_on(network, size, |group| {
        let mut values = ramp(group.world().rank(), length);
        all_reduce(group, &mut values, options).unwrap();
        values
    });
    for result in &results {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(result), bits(&results[0]), "all ranks hold the same bits");
        for (found, expected) in result.iter().zip(ramp_sum(size, length)) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= tolerance * size as f64, "{found} for {expected} with {options:?}");
        }
    }
}

#[test]
fn every_algorithm_sums_in_every_world() {
    for algorithm in Algorithm::ALL {
        for size in [1, 2, 3, 4, 5, 7, 8] {
            for length in [0, 1, 127, 5000] {
                for partitions in [None, Some(3)] {
                    let options = Options {
                        algorithm: Some(algorithm.into()),
                        partitions,
                        ..Options::default()
                    };
                    check(Network::Mem, size, length, &options, 0.0);
                }
            }
        }
    }
}

#[test]
fn trees_sum_over_every_link_and_by_every_codec_that_they_carry() {
    let shallow = "trees:3*0.0.0.0.0+2*2.2.2.2.2+1*4.4.4.4.4";
    let deep = "trees:1*0.0.1.2.3+2*1.1.4.1.1";
    let cases = [
        ("none", shallow, 0.0),
        ("none", deep, 0.0),
        ("bf16", deep, 0.2),
        ("int8:stochastic", shallow, 0.2),
    ];
    for (name, trees, tolerance) in cases {
        let options = Options {
            algorithm: Some(trees.parse().unwrap()),
            codec: codec(name),
            partitions: Some(2),
        };
        for network in Network::ALL {
            check(network, 5, 40_009, &options, tolerance);
        }
    }
}

#[test]
fn every_codec_sums_with_the_same_bits_everywhere() {
    let cases = [
        ("f16", Algorithm::Ring, 0.02),
        ("bf16", Algorithm::Halving, 0.2),
        ("f16", Algorithm::Gather, 0.02),
        ("int8:stochastic", Algorithm::TwoShot, 0.2),
        ("int4:stochastic", Algorithm::TwoShot, 4.0),
    ];
    for (name, algorithm, tolerance) in cases {
        for size in [1, 2, 3, 5] {
            let options = Options {
                algorithm: Some(algorithm.into()),
                codec: codec(name),
                partitions: Some(2),
            };
            check(Network::Mem, size, 3001, &options, tolerance);
        }
    }
}

#[test]
fn a_large_tensor_is_summed_in_pieces() {
    for network in Network::ALL {
        check(network, 2, 3_000_017, &Options::default(), 0.0);
    }
}

#[test]
fn every_link_carries_every_length() {
    for network in Network::ALL {
        for size in [1, 2, 3, 4, 5, 7, 8] {
            for length in [0, 1, 127, 40_009] {
                let algorithm = if size % 2 == 0 { Algorithm::Ring } else { Algorithm::Halving };
                let options = Options {
                    algorithm: Some(algorithm.into()),
                    partitions: Some(2),
                    ..Options::default()
                };
                check(network, size, length, &options, 0.0);
            }
        }
    }
}

#[test]
fn the_majority_decides_whatever_the_world() {
    for size in [1, 2, 3, 4, 5, 8] {
        let value = |rank: usize, at: usize| ((rank * 37 + at * 11) % 17) as f32 - 8.0;
        let options = Options { codec: codec("vote"), ..Options::default() };
        let results = spawn(size, |group| {
            let rank = group.world().rank().0 as usize;
            let mut values: Vec<f32> = (0..1000).map(|at| value(rank, at) * 1e3).collect();
            all_reduce(group, &mut values, &options).unwrap();
            values
        });
        for result in results {
            for (at, found) in result.into_iter().enumerate() {
                let negative = (0..size).filter(|rank| value(*rank, at) < 0.0).count();
                let expected = if 2 * negative > size { -1.0 } else { 1.0 };
                assert_eq!(found, expected, "element {at} of {size} ranks, {negative} against");
            }
        }
    }
}

#[test]
fn a_codec_that_needs_feedback_is_refused() {
    let options = Options { codec: codec("topk:0.01"), ..Options::default() };
    let mut group = Group::new(mem::alone());
    let error = all_reduce(&mut group, &mut [1.0], &options).unwrap_err().to_string();
    assert!(error.contains("topk:0.01 needs error feedback"), "{error}");
}

#[test]
fn many_small_tensors_are_each_summed() {
    let results = spawn(3, |group| {
        let me = group.world().rank().0 as f32;
        let mut tensors: Vec<Vec<f32>> = (0..1000).map(|i| vec![i as f32 + me; 8]).collect();
        let mut views: Vec<&mut [f32]> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
        all_reduce_many(group, &mut views, &Options::default()).unwrap();
        tensors
    });
    for tensors in results {
        for (i, tensor) in tensors.iter().enumerate() {
            assert_eq!(*tensor, vec![3.0 * i as f32 + 3.0; 8]);
        }
    }
}

#[test]
fn gathers_broadcasts_and_barriers_agree() {
    for size in [1, 2, 3, 4, 5, 7, 8] {
        let results = spawn(size, |group| {
            let me = group.world().rank();
            let root = Rank(size as u32 - 1);
            let mut values = ramp(me, 100_001);
            broadcast(group, &mut values, root).unwrap();
            assert_eq!(values, ramp(root, 100_001));
            barrier(group).unwrap();
            let mut values = ramp(me, 1000);
            let mine = reduce_scatter(group, &mut values).unwrap();
            let sums: Vec<f64> = values[mine.clone()].iter().map(|&x| f64::from(x)).collect();
            assert_eq!(sums, ramp_sum(size, 1000)[mine]);
            let texts = all_gather_bytes(group, "x".repeat(me.index() * 3).as_bytes()).unwrap();
            (all_gather(group, &[me.0 as f32, 0.5]).unwrap(), texts)
        });
        for (gathered, texts) in results {
            let ranks: Vec<f32> = (0..size).flat_map(|rank| [rank as f32, 0.5]).collect();
            assert_eq!(gathered, ranks);
            let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
            assert_eq!(lengths, (0..size).map(|rank| rank * 3).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_difference_in_length_is_named_on_both_sides() {
    let errors = spawn(2, |group| {
        let mut values = vec![1.0; 1000 + group.world().rank().index() * 500];
        all_reduce(group, &mut values, &Options::default()).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("length mismatch")), "{errors:?}");
    assert!(
        errors.iter().any(|error| error.contains("2000") || error.contains("3000")),
        "{errors:?}"
    );
}

#[test]
fn a_lost_rank_is_named_by_every_survivor() {
    let results = spawn(4, |group| {
        if group.world().rank() == Rank(2) {
            return None;
        }
        let mut values = vec![1.0; 100_000];
        let lost = loop {
            match all_reduce(group, &mut values, &Options::default()) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(all_reduce(group, &mut values, &Options::default()).is_err(), "the group is over");
        Some(lost)
    });
    for error in results.into_iter().flatten() {
        assert_eq!(error.rank(), Some(Rank(2)), "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
        assert!(error.to_string().contains("all_reduce"), "{error}");
    }
}

#[test]
fn a_silent_rank_is_named_after_the_timeout() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    let mut links = mem::mesh(2).into_iter();
    let (first, second) = (links.next().unwrap(), links.next().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _silent = second;
            // Holds its end of the link until the other rank has given up.
            let _ = receiver.lock().unwrap().recv();
        });
        let mut group = Group::new(first).with_timeout(std::time::Duration::from_millis(200));
        let error = barrier(&mut group).unwrap_err();
        assert_eq!(error.rank(), Some(Rank(1)));
        assert!(error.to_string().contains("nothing came from rank 1"), "{error}");
        drop(sender);
    });
}

#[test]
fn a_difference_in_codec_is_named_by_its_dtype() {
    let errors = spawn(2, |group| {
        let codec = codec(["f16", "bf16"][group.world().rank().index()]);
        let options = Options { codec, ..Options::default() };
        all_reduce(group, &mut [1.0; 64], &options).unwrap_err().to_string()
    });
    let mismatch = |error: &String| error.contains("dtype mismatch") && error.contains("expected");
    assert!(errors.iter().any(mismatch), "{errors:?}");
}

/// A peer that sends frames of its own making and takes whatever comes.
struct Intruder(Vec<u8>);

impl Port for Intruder {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.0
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {}

    fn incoming(
        &mut self,
        _from: Rank,
        header: &Header,
    ) -> Result<Place<'_>, thinwire_link::Error> {
        self.0.resize(header.length as usize, 0);
        Ok(Place::Here(&mut self.0))
    }

    fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), thinwire_link::Error> {
        Ok(())
    }
}

/// What a receive on rank 0 comes to when rank 1 sends this frame of 4 bytes.
fn intrude(epoch: u32, message: u32) -> Result<(), thinwire_collective::Error> {
    let mut links = mem::mesh(2).into_iter();
    let (mine, mut theirs) = (links.next().unwrap(), links.next().unwrap());
    let mut group = Group::new(mine);
    let mut run = start::recv(&mut group, vec![0.0; 1], Rank(1), 0).unwrap();
    let Address { step, tensor, .. } = run.address();
    let mut header = Header::new(Kind::Data, epoch, Tag { step, tensor, message }, 4);
    header.dtype = Some(DType::F32);
    theirs.send(Rank(0), header);
    while !theirs.progress(&mut Intruder(vec![0; 4])).unwrap() {}
    group.complete(std::slice::from_mut(&mut run))
}

#[test]
fn a_frame_of_another_life_or_another_schedule_is_refused() {
    intrude(0, 0).unwrap();
    let error = intrude(1, 0).unwrap_err().to_string();
    assert!(
        error.contains("rank 1 sent something that is not a frame: epoch 1, expected 0"),
        "{error}"
    );
    let error = intrude(0, 77).unwrap_err().to_string();
    assert!(error.contains("rank 1 sent message 77, which is not in this schedule"), "{error}");
}

#[test]
fn a_message_that_has_half_arrived_is_finished_by_its_run() {
    const LENGTH: usize = 2_000_003;
    let mut links = mem::mesh(2).into_iter();
    let (mine, mut theirs) = (links.next().unwrap(), links.next().unwrap());
    let mut group = Group::new(mine);
    let run = start::recv(&mut group, vec![0.0; LENGTH], Rank(1), 0).unwrap();
    let Address { step, tensor, .. } = run.address();
    let tag = Tag { step, tensor, message: 0 };
    let mut header = Header::new(Kind::Data, 0, tag, LENGTH * 4);
    header.dtype = Some(DType::F32);
    let mut intruder = Intruder(bytemuck::cast_slice(&ramp(Rank(1), LENGTH)).to_vec());
    theirs.send(Rank(0), header);
    // The link takes 4 MiB at a time, so what comes now is a half.
    theirs.progress(&mut intruder).unwrap();
    while group.advance::<Vec<f32>>(&mut []).unwrap() {}
    assert_eq!(theirs.counters().sent_frames, 0);
    let mut runs = [run];
    group.admit(&mut runs[0]).unwrap();
    while !runs[0].is_done() {
        theirs.progress(&mut intruder).unwrap();
        group.advance(&mut runs).unwrap();
    }
    assert!(runs[0].values() == ramp(Rank(1), LENGTH));
}

#[test]
fn a_rank_that_is_not_concerned_hears_of_a_failure_and_who_found_it() {
    for network in Network::ALL {
        let errors = spawn_on(network, 3, |group| {
            // Ranks 0 and 1 disagree; rank 2 waits for rank 0, which has nothing to say to it.
            let (me, long) = (group.world().rank(), vec![0.0; 20]);
            let run = match me.0 {
                0 => start::send(group, vec![0.0; 10], Rank(1), 0),
                1 => start::recv(group, long, Rank(0), 0),
                _ => start::recv(group, long, Rank(0), 0),
            };
            let result = group.complete(&mut [run.unwrap()]);
            result.and_then(|()| barrier(group)).unwrap_err().to_string()
        });
        for error in [&errors[0], &errors[2]] {
            assert!(error.contains("reports: length mismatch: rank 0 sent 40"), "{error}");
        }
    }
}
