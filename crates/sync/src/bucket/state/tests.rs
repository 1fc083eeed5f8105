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
    let (mut buckets, _) = crate::bucket::layout::layout(
        &parameters,
        usize::MAX,
        Apart::Vectors,
        &crate::Options::default().policy,
    );
    let (bucket, world) = (buckets.swap_remove(0), ranks.world);
    let elements = bucket.elements;
    let velocity = Velocity::new(Momentum::default(), 1.0, world.size());
    let (memory, bucket) = (Memory::new(Feedback::Ef21), Bucket { target, ..bucket });
    let mut state = BucketState::new(bucket, &parameters, ranks.clone(), memory, Some(velocity));
    let codec = Choice::parse(codec).unwrap();
    state.travel(Travel {
        codec,
        summation: thinwire_schedule::Algorithm::TwoShot.into(),
        partitions: 1,
        seed: 7,
    });
    let step = |step: u64| {
        let key = Key { seed: 3 + u64::from(world.rank().0), step, tensor: 0 };
        state.fill((0..elements as u64).map(|i| key.normal(i)).collect());
        let address = Address { step, tensor: 4, seed: 7, operation: "all_reduce" };
        let (exchange, departure) = state.depart(address);
        worker.exchange(Job { bucket: 0, exchange, departure });
        let arrival = worker.arrival().unwrap();
        state.arrive(arrival.exchange, arrival.finite);
        state.commit(Outcome::Averaged, &[]).unwrap();
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

/// One step of a sharded bucket, given the values of [`value`]: this rank's elements and their sums, and
/// what is owed after it.
fn scattered(worker: &Worker, codec: &str, step: u64, state: &mut BucketState) -> Scattered {
    let (world, elements) = (worker.channel.world(), state.bucket.elements);
    state.fill((0..elements).map(|i| value(world.rank().0, step, i)).collect());
    let address = Address { step, tensor: 4, seed: 7, operation: "reduce_scatter" };
    let (exchange, departure) = state.depart(address);
    worker.exchange(Job { bucket: 0, exchange, departure });
    let arrival = worker.arrival().unwrap();
    assert_eq!(arrival.finite, Finite::Yes, "{codec}");
    state.arrive(arrival.exchange, arrival.finite);
    state.commit(Outcome::Averaged, &[]).unwrap();
    (state.own.clone(), state.values().to_vec(), state.residual().to_vec())
}

type Scattered = (Range<usize>, Vec<f32>, Vec<f32>);

fn value(rank: u32, step: u64, element: usize) -> f32 {
    Key { seed: 3 + u64::from(rank), step, tensor: 0 }.normal(element as u64)
}

/// Results and residuals after equal gradients and residuals before, whatever the chunks.
#[test]
fn a_sharded_bucket_in_units_loses_nothing() {
    let (length, size) = (330, 6);
    for (codec, unit) in [("none", 2), ("int8", 2), ("int4", 3), ("topk:0.1", 3), ("int8", 6)] {
        let ranks = spawn(Network::Mem, size, |link| {
            let worker = Worker::new(Channel::new(Group::new(link)));
            let parameter = Parameter::new("flat", &[length]);
            let ranks = Ranks::all(worker.channel.world());
            let memory = Memory::new(Feedback::Classic);
            let parameter = Parameter { target: Target::Shard, ..parameter };
            let bucket = Bucket::of_one(0, &parameter);
            let mut state = BucketState::new(bucket, &[parameter], ranks, memory, None);
            let algorithm = thinwire_schedule::Algorithm::TwoShot;
            let summation = thinwire_schedule::Summation { unit, algorithm };
            let choice = Choice::parse(codec).unwrap();
            state.travel(Travel { codec: choice, summation, partitions: 1, seed: 7 });
            [0, 1, 2].map(|step| scattered(&worker, codec, step, &mut state))
        });
        let mut owed = vec![0.0; length];
        for step in 0..3 {
            let mut kept = vec![0.0; length];
            for (own, sums, residual) in ranks.iter().map(|steps| &steps[step]) {
                assert!(
                    residual[..].get(own.clone()).is_none_or(|own| own.iter().all(|x| *x == 0.0))
                );
                own.clone().zip(sums).for_each(|(i, sum)| kept[i] += f64::from(*sum));
                residual.iter().enumerate().for_each(|(i, owed)| kept[i] += f64::from(*owed));
            }
            for i in 0..length {
                let given: f64 =
                    (0..size as u32).map(|rank| f64::from(value(rank, step as u64, i))).sum();
                let expected = given + owed[i];
                assert!((kept[i] - expected).abs() < 1e-3, "{} for {expected}: {codec}", kept[i]);
            }
            let of_rank = |i: usize| ranks.iter().filter_map(move |steps| steps[step].2.get(i));
            owed = (0..length).map(|i| of_rank(i).map(|x| f64::from(*x)).sum()).collect();
        }
    }
}
