//! What sums in two levels compute and cost.

use proptest::prelude::*;
use thinwire_schedule::simulate::{Encoding, run};
use thinwire_schedule::{
    Algorithm, Levels, Operation, Schedule, Shape, Speeds, Summation, all_gather, all_reduce,
    cost_in_units, cost_of, reduce_scatter, verify,
};
use thinwire_wire::random::Key;
use thinwire_wire::{Rank, World};

/// Ranks in a unit, and units: all alone, all in one unit, and between.
const UNITS: [(usize, usize); 10] =
    [(1, 1), (1, 5), (2, 1), (4, 1), (2, 2), (2, 3), (3, 2), (3, 4), (4, 2), (4, 4)];

const SHAPES: [(usize, usize, usize); 6] =
    [(0, 1, 1), (1, 1, 2), (7, 1, 1), (211, 1, 3), (211, 64, 2), (2503, 64, 2)];

fn everyone(size: usize, schedule: impl Fn(World) -> Schedule) -> Vec<Schedule> {
    let world = |rank| World::new(rank as u32, size as u32).unwrap();
    (0..size).map(|rank| schedule(world(rank))).collect()
}

fn shape((length, block, partitions): (usize, usize, usize)) -> Shape {
    Shape { length, block, partitions }
}

fn normals(size: usize, length: usize, seed: u64) -> Vec<Vec<f32>> {
    let values = |key: Key| (0..length as u64).map(|i| key.normal(i)).collect();
    (0..size as u32).map(|rank| values(Key { seed, step: 0, tensor: 0 }.for_rank(rank))).collect()
}

/// Rounds to 127 steps of the largest magnitude in each block of 64.
fn blocks(values: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| {
        let scale = block.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs())) / 127.0;
        block.iter().map(|x| (x / scale).round() * scale).collect::<Vec<_>>()
    };
    values.chunks(64).flat_map(block).collect()
}

fn identity(values: &[f32]) -> Vec<f32> {
    values.to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn world(rank: usize, size: usize) -> World {
    World::new(rank as u32, size as u32).unwrap()
}

/// The numbers of a unit's ranks, and of those at one place of all units.
fn members(unit: usize, units: usize) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
    let of_unit = |u: usize| (0..unit).map(|at| u * unit + at).collect();
    let of_place = |at: usize| (0..units).map(|u| u * unit + at).collect();
    ((0..units).map(of_unit).collect(), (0..unit).map(of_place).collect())
}

/// Runs one schedule in every group.
fn in_groups(
    groups: &[Vec<usize>],
    values: &mut [Vec<f32>],
    encoding: Encoding<'_>,
    schedule: impl Fn(usize, World) -> Schedule,
) {
    for (number, group) in groups.iter().enumerate() {
        let mut own: Vec<Vec<f32>> = group.iter().map(|rank| values[*rank].clone()).collect();
        run(&everyone(group.len(), |world| schedule(number, world)), &mut own, encoding, 0)
            .unwrap();
        for (rank, own) in group.iter().zip(own) {
            values[*rank] = own;
        }
    }
}

/// The sum in three schedules: a raw reduce-scatter, an encoded all-reduce of each part, a raw all-gather.
fn by_hand(hierarchy: Summation, units: usize, shape: &Shape, values: &mut [Vec<f32>]) {
    let (in_unit, at_place) = members(hierarchy.unit, units);
    let whole = Shape { length: shape.length, block: 1, partitions: 1 };
    in_groups(&in_unit, values, Encoding::Through(&identity), |_, w| reduce_scatter(w, &whole));
    for (at, group) in at_place.iter().enumerate() {
        let part = whole.chunk(0, hierarchy.unit, at);
        let cut = Shape { length: part.len(), ..shape.clone() };
        let mut parts: Vec<Vec<f32>> =
            group.iter().map(|r| values[*r][part.clone()].to_vec()).collect();
        let schedules = everyone(units, |world| all_reduce(hierarchy.algorithm, world, &cut));
        run(&schedules, &mut parts, Encoding::Through(&blocks), 0).unwrap();
        for (rank, sum) in group.iter().zip(parts) {
            values[*rank][part.clone()].copy_from_slice(&sum);
        }
    }
    in_groups(&in_unit, values, Encoding::Through(&identity), |_, w| all_gather(w, &whole));
}

#[test]
fn schedules_keep_the_laws_and_are_the_sum_by_hand_in_any_order() {
    for ((unit, units), between) in
        UNITS.into_iter().flat_map(|at| Algorithm::ALL.map(|between| (at, between)))
    {
        let (hierarchy, size) = (Summation { unit, algorithm: between }, unit * units);
        for shape in SHAPES.map(shape) {
            let schedules = everyone(size, |world| hierarchy.all_reduce(world, &shape));
            let about = format!("{hierarchy} of {size}, {shape:?}");
            assert_eq!(verify(&schedules), Ok(()), "{about}");
            let start = normals(size, shape.length, 5);
            let mut expected = start.clone();
            by_hand(hierarchy, units, &shape, &mut expected);
            for seed in 0..8 {
                let mut values = start.clone();
                run(&schedules, &mut values, Encoding::Through(&blocks), seed).unwrap();
                for (found, expected) in values.iter().zip(&expected) {
                    assert_eq!(bits(found), bits(expected), "{about}");
                    assert_eq!(bits(found), bits(&values[0]), "{about}");
                }
            }
        }
    }
}

#[test]
fn scattered_sums_are_those_by_hand() {
    for (unit, units) in UNITS {
        let (hierarchy, size) = (Summation { unit, algorithm: Algorithm::TwoShot }, unit * units);
        for length in [0, 1, 211, 48 * size] {
            let schedules = everyone(size, |world| hierarchy.reduce_scatter(world, length));
            assert_eq!(verify(&schedules), Ok(()), "{hierarchy} of {size}, {length} elements");
            let mut values = normals(size, length, 3);
            let mut expected = values.clone();
            run(&schedules, &mut values, Encoding::Through(&blocks), 2).unwrap();
            let (in_unit, at_place) = members(unit, units);
            let whole = Shape { length, block: 1, partitions: 1 };
            in_groups(&in_unit, &mut expected, Encoding::Through(&identity), |_, world| {
                reduce_scatter(world, &whole)
            });
            for (at, group) in at_place.iter().enumerate() {
                let part = whole.chunk(0, unit, at);
                let cut = Shape { length: part.len(), ..whole.clone() };
                let mut parts: Vec<Vec<f32>> =
                    group.iter().map(|rank| expected[*rank][part.clone()].to_vec()).collect();
                let schedules = everyone(units, |world| reduce_scatter(world, &cut));
                run(&schedules, &mut parts, Encoding::Through(&blocks), 0).unwrap();
                for (u, rank) in group.iter().enumerate() {
                    let chunk = hierarchy.chunk(world(*rank, size), length);
                    assert_eq!(
                        bits(&values[*rank][chunk]),
                        bits(&parts[u][cut.chunk(0, units, u)])
                    );
                }
            }
        }
    }
}

#[test]
fn units_of_one_rank_are_a_flat_world() {
    let shape = shape((211, 4, 3));
    for between in Algorithm::ALL {
        for world in (0..5).map(|rank| World::new(rank, 5).unwrap()) {
            let hierarchy = Summation { unit: 1, algorithm: between };
            assert_eq!(hierarchy.all_reduce(world, &shape), all_reduce(between, world, &shape));
            let whole = Shape { length: 211, block: 1, partitions: 1 };
            assert_eq!(hierarchy.reduce_scatter(world, 211), reduce_scatter(world, &whole));
            assert_eq!(hierarchy.chunk(world, 211), whole.chunk(0, 5, world.rank().index()));
        }
    }
}

proptest! {
    #[test]
    fn raw_values_in_place_are_the_same_bits_as_copies(
        at in prop::sample::select(&UNITS[..]),
        between in prop::sample::select(&[Algorithm::Ring, Algorithm::Halving, Algorithm::TwoShot][..]),
        length in 0_usize..600,
        partitions in 1_usize..4,
        seed: u64,
    ) {
        let (hierarchy, size) = (Summation { unit: at.0, algorithm: between }, at.0 * at.1);
        let shape = Shape { length, block: 1, partitions };
        let schedules = everyone(size, |world| hierarchy.all_reduce(world, &shape));
        prop_assert!(schedules.iter().all(Schedule::in_place));
        let (mut copied, mut in_place) = (normals(size, length, 1), normals(size, length, 1));
        run(&schedules, &mut copied, Encoding::Through(&identity), 0).unwrap();
        run(&schedules, &mut in_place, Encoding::InPlace, seed).unwrap();
        prop_assert_eq!(copied, in_place);
    }
}

fn link(bytes_per_s: f64, latency_s: f64) -> Speeds {
    let free = f64::INFINITY;
    Speeds {
        latency_s,
        bytes_per_s,
        encode_per_s: free,
        decode_per_s: free,
        merge_per_s: free,
        task_overhead_s: 0.0,
    }
}

#[test]
fn little_crosses_between_units() {
    let (unit, units, length) = (4, 3, 1 << 12);
    let hierarchy = Summation { unit, algorithm: Algorithm::TwoShot };
    let shape = Shape { length, block: 1, partitions: 1 };
    for world in (0..12).map(|rank| World::new(rank, 12).unwrap()) {
        let schedule = hierarchy.all_reduce(world, &shape);
        let bytes = schedule.bytes(&|elements| elements);
        let (mut within, mut between) = (0, 0);
        for task in &schedule.tasks {
            if let Operation::Send { slot, to: Rank(to), .. } = task.operation {
                match to as usize / unit == world.rank().index() / unit {
                    true => within += bytes[slot.index()],
                    false => between += bytes[slot.index()],
                }
            }
        }
        let (n, u, m) = (length as f64, unit as f64, units as f64);
        assert!((between as f64 - n / u * 2.0 * (m - 1.0) / m).abs() <= 4.0);
        assert!((within as f64 - (u - 1.0) / u * n * 5.0).abs() <= 4.0);
    }
}

#[test]
fn fast_links_within_units_make_it_worth_while() {
    let (size, shape) = (8, Shape { length: 1 << 16, block: 1, partitions: 1 });
    let (fast, slow) = (link(1e10, 1e-6), link(1e7, 1e-4));
    let raw = |elements: usize| 4 * elements;
    let hierarchy = Summation { unit: 4, algorithm: Algorithm::TwoShot };
    let in_units = everyone(size, |world| hierarchy.all_reduce(world, &shape));
    let flat = everyone(size, |world| all_reduce(Algorithm::TwoShot, world, &shape));
    let levels = Levels { unit: 4, within: &fast, between: &slow, rates: None };
    let of_units = cost_in_units(&in_units, &raw, &levels).seconds;
    let of_flat = cost_in_units(&flat, &raw, &levels).seconds;
    // A quarter of the values crosses between two units, instead of half of them twice.
    assert!(of_flat > 4.0 * of_units, "{of_flat} and {of_units}");
    // On one kind of links it is the flat one that wins.
    assert!(cost_of(&in_units, &raw, &slow).seconds > cost_of(&flat, &raw, &slow).seconds);
}

#[test]
fn units_are_found_where_ranks_are_near() {
    let of = |size, unit: usize| Summation::unit_of(size, |from, to| from / unit == to / unit);
    assert_eq!([of(8, 4), of(6, 2), of(6, 3)], [Some(4), Some(2), Some(3)]);
    assert_eq!([of(7, 4), of(4, 4), of(4, 1), of(1, 1)], [None; 4]);
    // Ranks 0 and 2 share a machine, and so do 1 and 3.
    assert_eq!(Summation::unit_of(4, |from, to| from % 2 == to % 2), None);
    // One pair of a unit is apart.
    let split = |from: usize, to: usize| from / 3 == to / 3 && from + to != 7;
    assert_eq!(Summation::unit_of(6, split), None);
}
