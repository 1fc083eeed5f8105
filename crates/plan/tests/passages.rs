//! Laws of passages: worked out once for all shapes, meshes and links, they take what conversions do.

use proptest::prelude::*;
use thinwire_model::{Layout, Placement, Reduction};
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Coding, Costs, Passages, Precision};

const CLUSTER: &str = "[[device]]\nname = \"rank\"\ntflops = 1\nmemory_gib = 4\nmemory_gbyte_per_s = 10\n\
    memory_efficiency = 1\noperators = { layout = 0.5 }\n\
    [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 5\ngbit = 100\n\
    [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 10\ngbit = 1\n";

/// All layouts on a mesh of so many dimensions.
fn layouts(dims: usize) -> Vec<Layout> {
    let placements = [
        Placement::Replicated,
        Placement::Sharded(0),
        Placement::Sharded(1),
        Placement::Partial(Reduction::Sum),
        Placement::Partial(Reduction::Max),
    ];
    let mut all = vec![Layout(Vec::new())];
    for _ in 0..dims {
        let longer = |layout: &Layout| {
            placements.map(|placement| Layout([&layout.0[..], &[placement]].concat()))
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    let meshes = [&[8][..], &[2, 4], &[4, 2], &[1, 8], &[2, 2, 2]];
    proptest::sample::select(meshes.map(<[usize]>::to_vec).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn passages_take_what_conversions_do(
        mesh in meshes(),
        shape in (1_usize..20, 1_usize..20),
        encoded in any::<bool>(),
    ) {
        let cluster = Cluster::parse(CLUSTER).unwrap();
        let mut costs = Costs::new(&cluster, &mesh, Precision::SINGLE);
        let coding = encoded.then(|| Coding::parse("int8").unwrap());
        costs.activations = vec![None, coding];
        let (shape, all) = ([shape.0, shape.1], layouts(mesh.len()));
        let passages = Passages::new(&all, &all);
        let found = costs.passages_s(&shape, &passages, &all, &all);
        let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
        for ((from, to), seconds) in pairs.zip(found) {
            let expected = costs.conversion_s(&shape, from, to);
            prop_assert_eq!(seconds, expected, "{} to {} of {:?} on {:?}", from, to, shape, mesh);
        }
    }
}

#[test]
fn parts_that_do_not_lie_together_are_copied() {
    let cluster = Cluster::parse(CLUSTER).unwrap();
    let costs = Costs::new(&cluster, &[8], Precision::SINGLE);
    let seconds = |from, to| costs.conversion_s(&[8, 16], &Layout(vec![from]), &Layout(vec![to]));
    let (sum, whole) = (Placement::Partial(Reduction::Sum), Placement::Replicated);
    let copied_s = 2.0 * (8.0 * 16.0 * 4.0) / (10e9 * 0.5);
    let scattered = [0, 1].map(|dim| seconds(sum, Placement::Sharded(dim)));
    let gathered = [0, 1].map(|dim| seconds(Placement::Sharded(dim), whole));
    for [first, second] in [scattered, gathered] {
        assert!((second - first - copied_s).abs() < 1e-12, "{first} {second}");
    }
    assert!((seconds(sum, whole) - 2.0 * scattered[0]).abs() < 1e-12);
}
