//! Schedules as a reader sees them, against the texts in `testdata/`.
//!
//! `UPDATE_GOLDEN=1 cargo test -p thinwire-schedule` writes the texts anew.

use std::fmt::Write;
use std::path::Path;

use thinwire_schedule::{
    Algorithm, Schedule, Shape, Summation, all_gather, all_reduce, broadcast, hand_over,
    reduce_scatter,
};
use thinwire_wire::{Rank, World};

/// Compares what all ranks do with a text.
fn draws(name: &str, size: u32, shape: &Shape, schedule: impl Fn(World, &Shape) -> Schedule) {
    let Shape { length, block, partitions } = shape;
    let mut text = format!(
        "{name}: {size} ranks, {length} elements, blocks of {block}, {partitions} partition(s)\n"
    );
    for world in (0..size).map(|rank| World::new(rank, size).unwrap()) {
        write!(text, "\n{}\n{}", world.rank(), schedule(world, shape)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}-{size}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(text == golden, "{} differs (UPDATE_GOLDEN=1 accepts):\n{text}", path.display());
}

fn elements(length: usize) -> Shape {
    Shape { length, block: 1, partitions: 1 }
}

#[test]
fn algorithms_are_drawn() {
    for algorithm in Algorithm::ALL {
        let reduce = |world, shape: &Shape| all_reduce(algorithm, world, shape);
        draws(algorithm.name(), 1, &elements(6), reduce);
        draws(algorithm.name(), 3, &elements(6), reduce);
    }
    draws("halving", 4, &elements(8), |world, shape| all_reduce(Algorithm::Halving, world, shape));
}

#[test]
fn levels_are_drawn() {
    let hierarchy = Summation { unit: 2, algorithm: Algorithm::TwoShot };
    draws("hierarchical", 4, &elements(8), |world, shape| hierarchy.all_reduce(world, shape));
    let scatter = |world, shape: &Shape| hierarchy.reduce_scatter(world, shape.length);
    draws("hierarchical-reduce-scatter", 4, &elements(8), scatter);
}

#[test]
fn collectives_are_drawn() {
    draws("broadcast", 6, &elements(6), |world, shape| broadcast(Rank(1), world, shape));
    draws("all-gather", 3, &elements(6), all_gather);
    draws("reduce-scatter", 3, &elements(6), reduce_scatter);
    draws("hand-over", 3, &elements(6), |world, shape| hand_over(2, world, shape));
    draws("hand-over", 4, &elements(6), |world, shape| hand_over(1, world, shape));
}

#[test]
fn partitions_are_drawn() {
    let shape = Shape { length: 900, block: 256, partitions: 2 };
    draws("two-shot-in-blocks", 2, &shape, |world, shape| {
        all_reduce(Algorithm::TwoShot, world, shape)
    });
}
