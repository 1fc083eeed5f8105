//! Sums in two levels over a group.

use std::sync::Arc;

use thinwire_codec::{Choice, Codec};
use thinwire_collective::{
    Address, Group, Kind, Options, Program, Run, all_gather, all_reduce, start,
};
use thinwire_schedule::{Algorithm, Shape, Summation, simulate};
use thinwire_testkit::{self as testkit, Network, ramp, ramp_sum};
use thinwire_wire::{Rank, World};

fn spawn<T: Send>(size: usize, body: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    testkit::spawn(Network::Mem, size, |link| body(&mut Group::new(link)))
}

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name) {
        Ok(Choice::Bytes(codec)) => codec,
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn every_codec_sums_with_the_same_bits_everywhere() {
    let cases = [
        ("none", Algorithm::Ring, 0.0),
        ("none", Algorithm::Gather, 0.0),
        ("f16", Algorithm::TwoShot, 0.02),
        ("int8:stochastic", Algorithm::TwoShot, 0.2),
        ("int8:stochastic", Algorithm::Gather, 0.2),
    ];
    for ((name, between, tolerance), (unit, units)) in cases
        .into_iter()
        .flat_map(|case| [(1, 3), (2, 1), (2, 2), (3, 2), (2, 4)].map(|at| (case, at)))
    {
        let (hierarchy, size) = (Summation { unit, algorithm: between }, unit * units);
        let options =
            Options { algorithm: Some(hierarchy), codec: codec(name), partitions: Some(2) };
        let results = spawn(size, |group| {
            let mut values = ramp(group.world().rank(), 3001);
            all_reduce(group, &mut values, &options).unwrap();
            values
        });
        for result in &results {
            assert!(result.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits()));
            for (found, expected) in result.iter().zip(ramp_sum(size, 3001)) {
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= tolerance * size as f64,
                    "{found} for {expected}: {hierarchy}, {name}"
                );
            }
        }
    }
}

#[test]
fn with_feedback_results_and_residuals_hold_everything() {
    let (hierarchy, length) = (Summation { unit: 2, algorithm: Algorithm::TwoShot }, 1000);
    let int4 = codec("int4");
    let whole = |rank: Rank, i: usize| ((i * 7 + rank.index() * 13) % 101) as f32 - 50.0;
    let ranks = spawn(4, |group| {
        let world = group.world();
        let shape = Shape { length, block: int4.block(), partitions: 1 };
        let program = Program::new(hierarchy.all_reduce(world, &shape), length, Arc::clone(&int4));
        let address = Address { step: 1, tensor: 0, seed: 3, operation: "all_reduce" };
        let values: Vec<f32> = (0..length).map(|i| whole(world.rank(), i)).collect();
        let residual = Some(vec![0.0; length]);
        let mut runs = [Run::new(Arc::new(program), address, world, values, residual)];
        group.complete(&mut runs).unwrap();
        let [run] = runs;
        run.commit().unwrap()
    });
    for i in 0..length {
        let given: f64 = (0..4).map(|rank| f64::from(whole(Rank(rank), i))).sum();
        let lost: f64 = ranks.iter().map(|(_, residual)| f64::from(residual[i])).sum();
        let found = f64::from(ranks[0].0[i]) + lost;
        assert!((found - given).abs() < 1e-3, "{found} of {given}");
        assert!(ranks.iter().all(|(result, _)| result[i] == ranks[0].0[i]));
        // Only the owners of a part encode it: the ranks with its place.
        let other = if i < length / 2 { [1, 3] } else { [0, 2] };
        assert!(other.iter().all(|rank| ranks[*rank].1[i] == 0.0));
    }
}

#[test]
fn the_group_runs_what_the_simulation_runs() {
    let (hierarchy, length, size) = (Summation { unit: 2, algorithm: Algorithm::Ring }, 777, 6);
    let shape = Shape { length, block: 1, partitions: 1 };
    let value = |rank: u32, i: usize| ((i as f32) * 0.37 + rank as f32).sin();
    let start: Vec<Vec<f32>> =
        (0..size).map(|rank| (0..length).map(|i| value(rank, i)).collect()).collect();
    let world = |rank| World::new(rank, size).unwrap();
    let schedules: Vec<_> = (0..size).map(|r| hierarchy.all_reduce(world(r), &shape)).collect();
    let mut expected = start.clone();
    simulate::run(&schedules, &mut expected, simulate::Encoding::InPlace, 3).unwrap();
    let found = spawn(size as usize, |group| {
        let mut values = start[group.world().rank().index()].clone();
        let options = Options { algorithm: Some(hierarchy), ..Options::default() };
        all_reduce(group, &mut values, &options).unwrap();
        values
    });
    assert_eq!(found, expected);
}

#[test]
fn ranks_that_do_not_divide_are_refused_and_the_group_lives_on() {
    let lengths = spawn(3, |group| {
        let hierarchy = Summation { unit: 2, algorithm: Algorithm::Ring };
        let options = Options { algorithm: Some(hierarchy), ..Options::default() };
        let run = start::all_reduce(group, vec![1.0_f32], &options);
        let error = run.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(
            error
                .to_string()
                .contains("hierarchical:2:ring with 3 ranks, expected a multiple of 2")
        );
        all_gather(group, &[1_u8]).unwrap().len()
    });
    assert_eq!(lengths, [3, 3, 3]);
}
