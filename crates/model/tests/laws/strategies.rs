//! Every strategy of every operator gives what one rank gives.

use proptest::prelude::*;
use thinwire_model::{Array, Declaration, Region, Strategy};

use crate::reference::Reference;
use crate::samples::{Sample, samples};
use crate::shards::{assert_close, gather, ranks, scatter};

/// Meshes of up to two dimensions and eight ranks.
pub const MESHES: [&[usize]; 6] = [&[2], &[3], &[4], &[2, 2], &[2, 3], &[4, 2]];

/// What comes out when every rank does its part.
fn sharded(
    sample: &Sample,
    declaration: &Declaration,
    (strategy, mesh): (&Strategy, &[usize]),
    inputs: &[Array],
) -> Vec<Array> {
    let scattered: Vec<Vec<Array>> = inputs
        .iter()
        .enumerate()
        .map(|(at, input)| scatter(input, &declaration.input_sides(at, strategy).value, mesh, 5))
        .collect();
    let mut outputs: Vec<Vec<Array>> = vec![Vec::new(); declaration.outputs.len()];
    for (rank, coordinates) in ranks(mesh).iter().enumerate() {
        let local: Vec<&Array> = scattered.iter().map(|shards| &shards[rank]).collect();
        let region = declaration.region(strategy, mesh, coordinates).with_random(3, 4);
        let found = sample.operator.evaluate(&local, &region);
        outputs.iter_mut().zip(found).for_each(|(list, output)| list.push(output));
    }
    let whole = |(at, shards): (usize, Vec<Array>)| {
        gather(shards, &declaration.output_sides(at, strategy).value, mesh)
    };
    outputs.into_iter().enumerate().map(whole).collect()
}

fn every_strategy_is_exact(sample: &Sample, seed: u64) {
    let declaration = sample.operator.declare(&sample.shapes()).unwrap();
    let inputs = sample.arrays(seed);
    let all: Vec<&Array> = inputs.iter().collect();
    let expected = sample.operator.evaluate(&all, &Region::whole(&declaration).with_random(3, 4));
    for mesh in MESHES {
        for strategy in declaration.strategies(mesh) {
            let actual = sharded(sample, &declaration, (&strategy, mesh), &inputs);
            for (actual, expected) in actual.iter().zip(&expected) {
                let what = || format!("{sample:?} {} on {mesh:?}", declaration.describe(&strategy));
                assert_close(actual, expected, 1e-9, &what);
            }
        }
    }
}

/// Elements of all operands of a region.
fn elements(region: &Region<'_>) -> usize {
    let declaration = region.declaration();
    let operands = declaration.inputs.iter().chain(&declaration.outputs);
    let parts = operands.map(|operand| region.parts_of(operand));
    parts.map(|parts| parts.iter().map(|part| part.length).product::<usize>()).sum()
}

fn work_is_shared(sample: &Sample) {
    let declaration = sample.operator.declare(&sample.shapes()).unwrap();
    for mesh in MESHES {
        let ranks: usize = mesh.iter().product();
        for strategy in declaration.strategies(mesh) {
            let regions = || crate::shards::ranks(mesh).into_iter();
            let points = |region: Region<'_>| region.lengths().iter().product::<usize>();
            let done: usize =
                regions().map(|at| points(declaration.region(&strategy, mesh, &at))).sum();
            let once: usize = declaration.axes.iter().map(|axis| axis.length).product();
            let flops = declaration.local_flops(&strategy, mesh) * ranks as f64;
            let expected = declaration.flops * done as f64 / once.max(1) as f64;
            assert!((flops - expected).abs() <= 1e-9 * expected, "{sample:?} {mesh:?}");
            let local = declaration.local_elements(&strategy, mesh);
            let all: usize =
                regions().map(|at| elements(&declaration.region(&strategy, mesh, &at))).sum();
            assert_eq!(local * ranks, all, "{sample:?} {mesh:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_strategy_of_every_operator_gives_what_one_rank_gives(seed: u64) {
        samples(seed).iter().for_each(|sample| every_strategy_is_exact(sample, seed));
    }

    #[test]
    fn flops_of_all_ranks_are_the_operators_times_its_replicas(seed: u64) {
        samples(seed).iter().for_each(work_is_shared);
    }
}

#[test]
fn an_operator_says_its_output_shapes() {
    for sample in (0..20).flat_map(samples) {
        let declaration = sample.operator.declare(&sample.shapes()).unwrap();
        let inputs = sample.arrays(1);
        let outputs = sample
            .operator
            .evaluate(&inputs.iter().collect::<Vec<_>>(), &Region::whole(&declaration));
        let shapes: Vec<_> = outputs.iter().map(|output| output.shape().to_vec()).collect();
        assert_eq!(shapes, declaration.output_shapes(), "{sample:?}");
    }
}
