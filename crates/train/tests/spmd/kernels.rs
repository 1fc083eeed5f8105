//! Every kernel gives what the operator means, on all of it and on every part.

use proptest::prelude::*;
use thinwire_model::{Array, Declaration, Region, Strategy};
use thinwire_train::spmd::{Value, kernel};

use crate::reference::Reference;
use crate::samples::{Sample, samples};
use crate::shards::{ranks, scatter};

const MESHES: [&[usize]; 3] = [&[], &[2], &[2, 2]];

fn close(sample: &Sample, region: &Region<'_>, inputs: &[Array]) {
    let values: Vec<Value> = inputs.iter().map(Value::from_array).collect();
    // What f32 has already lost is not the kernel's fault.
    let rounded: Vec<Array> = values.iter().map(Value::array).collect();
    let expected = sample.operator.evaluate(&rounded.iter().collect::<Vec<_>>(), region);
    let actual = kernel::compute(&sample.operator, values, region);
    assert_eq!(actual.len(), expected.len(), "{sample:?}");
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_eq!(actual.shape(), expected.shape(), "{sample:?}");
        for (a, b) in actual.array().values().iter().zip(expected.values()) {
            let near = a == b || (a - b).abs() <= 1e-4 * (1.0 + b.abs());
            assert!(near, "{sample:?} on {:?}: {a}, expected {b}", region.parts());
        }
    }
}

fn parts_are_close(sample: &Sample, declaration: &Declaration, inputs: &[Array]) {
    for mesh in MESHES {
        for strategy in declaration.strategies(mesh) {
            let shards = |(at, input): (usize, &Array)| {
                scatter(input, &declaration.input_sides(at, &strategy).value, mesh, 5)
            };
            let shards: Vec<Vec<Array>> = inputs.iter().enumerate().map(shards).collect();
            on_ranks(sample, declaration, (&strategy, mesh), &shards);
        }
    }
}

fn on_ranks(
    sample: &Sample,
    declaration: &Declaration,
    (strategy, mesh): (&Strategy, &[usize]),
    shards: &[Vec<Array>],
) {
    for (rank, coordinates) in ranks(mesh).iter().enumerate() {
        let region = declaration.region(strategy, mesh, coordinates).with_random(3, 4);
        let local: Vec<Array> = shards.iter().map(|shards| shards[rank].clone()).collect();
        close(sample, &region, &local);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn every_kernel_gives_what_its_operator_means(seed: u64) {
        for sample in samples(seed) {
            let declaration = sample.operator.declare(&sample.shapes()).unwrap();
            parts_are_close(&sample, &declaration, &sample.arrays(seed));
        }
    }
}
