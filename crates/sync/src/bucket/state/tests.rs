//! Buckets among some ranks of a job.

use thinwire_codec::Choice;
use thinwire_collective::Group;
use thinwire_testkit::{Network, spawn};
use thinwire_wire::Rank;

use super::*;
use crate::bucket::layout::Apart;
use crate::worker::{Job, Worker};
use crate::{Channel, Feedback, Momentum, Target};

/// The results of some steps of a bucket of two matrices among `ranks`, and the residual after each.
fn exchanged(worker: &Worker, ranks: &Ranks, target: Target, codec: &str) -> Vec<[Vec<f32>; 2]> {
    let parameters = [Parameter::new("wide", &[24, 30]), Parameter::new("tall", &[40, 8])];
    let (mut buckets, _) = crate::bucket::layout::layout(&parameters, usize::MAX, Apart::Vectors);
    let (bucket, world) = (buckets.swap_remove(0), ranks.world);
    let elements = bucket.elements;
    let velocity = Velocity::new(Momentum::default(), 1.0, world.size());
    let (memory, bucket) = (Memory::new(Feedback::Ef21), Bucket { target, ..bucket });
    let mut state = BucketState::new(bucket, &parameters, ranks.clone(), memory, Some(velocity));
    let codec = Choice::parse(codec).unwrap();
    state.travel(Travel { codec, algorithm: Algorithm::TwoShot, partitions: 1, seed: 7 });
    let step = |step: u64| {
        let key = Key { seed: 3 + u64::from(world.rank().0), step, tensor: 0 };
        state.fill((0..elements as u64).map(|i| key.normal(i)).collect());
        let address = Address { step, tensor: 4, seed: 7, operation: "all_reduce" };
        let (exchange, departure) = state.depart(address);
        worker.exchange(Job { bucket: 0, exchange, departure });
        let arrival = worker.arrival().unwrap();
        state.arrive(arrival.exchange, arrival.finite);
        state.commit(Outcome::Averaged).unwrap();
        [state.values().to_vec(), state.residual().to_vec()]
    };
    (0..4).map(step).collect()
}

/// Groups side by side use the same addresses, and neither hears of the other.
#[test]
fn a_group_exchanges_as_a_world_of_its_own_does() {
    for codec in
        ["none", "int8", "topk:0.1", "qsgd:4", "powersgd:2", "powersgd:2:alternate", "intsgd"]
    {
        for target in [Target::Whole, Target::Shard] {
            let alone = spawn(Network::Mem, 2, |link| {
                let worker = Worker::new(Channel::new(Group::new(link)));
                exchanged(&worker, &Ranks::all(worker.channel.world()), target, codec)
            });
            let groups = spawn(Network::Mem, 4, |link| {
                let worker = Worker::new(Channel::new(Group::new(link)));
                let rank = worker.channel.world().rank();
                let members = [Rank(rank.0 % 2), Rank(rank.0 % 2 + 2)];
                let ranks = Ranks::among(&members, worker.channel.world()).unwrap();
                exchanged(&worker, &ranks, target, codec)
            });
            for (rank, found) in groups.iter().enumerate() {
                assert_eq!(*found, alone[rank / 2], "{codec}, {target:?}, rank {rank}");
            }
        }
    }
}
