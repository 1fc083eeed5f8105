//! Laws of partitions, for every method on any graph.

use std::collections::BTreeSet;

use proptest::prelude::*;
use thinwire_graph::partition::{Method, Options, Parts, Relabelling, Report, closure, partition};
use thinwire_graph::{Adjacency, Weights};

const VERTICES: u32 = 24;

fn graphs() -> impl Strategy<Value = Adjacency> {
    prop::collection::vec((0..VERTICES, 0..VERTICES), 0..90)
        .prop_map(|edges| Adjacency::from_edges(VERTICES, &edges).unwrap())
}

fn training() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::btree_set(0..VERTICES, 1..20).prop_map(|set| set.into_iter().collect())
}

proptest! {
    #[test]
    fn every_training_vertex_is_in_one_part(
        graph in graphs(), training in training(), parts in 1_u32..6, seed in any::<u64>()
    ) {
        let options = Options { parts, hops: 2, balance_max: 1.02, seed };
        for method in Method::all() {
            let made = partition(&graph, &training, method, &options).unwrap();
            prop_assert_eq!((made.count(), made.vertices()), (parts, VERTICES));
            let mut all = made.deal(&training).concat();
            all.sort_unstable();
            prop_assert_eq!(&all, &training, "{}", method);
            prop_assert_eq!(partition(&graph, &training, method, &options).unwrap(), made);
        }
    }

    #[test]
    fn dealt_parts_have_equal_numbers(
        graph in graphs(), training in training(), parts in 1_u32..6, seed in any::<u64>()
    ) {
        let options = Options { parts, hops: 2, balance_max: 1.02, seed };
        let made = partition(&graph, &training, Method::Hash, &options).unwrap();
        let report = Report::new(&graph, &training, &made, 2);
        let spread = |sizes: &[u64]| sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
        prop_assert!(spread(&report.training) <= 1 && spread(&report.vertices) <= 2);
    }

    #[test]
    fn training_vertices_are_within_the_bound(
        graph in graphs(), training in training(), parts in 1_u32..6, percent in 0_u32..50
    ) {
        let balance_max = 1.0 + f64::from(percent) / 100.0;
        let options = Options { parts, hops: 1, balance_max, seed: 3 };
        let mean = training.len() as f64 / f64::from(parts);
        let limit = (mean * balance_max).floor().max(mean.ceil()) as u64;
        // Ranges cannot choose their vertices.
        for method in Method::all().into_iter().filter(|method| *method != Method::Ranges) {
            let made = partition(&graph, &training, method, &options).unwrap();
            let most = Report::new(&graph, &training, &made, 1).training.into_iter().max().unwrap();
            prop_assert!(most <= limit, "{}: {} above {}", method, most, limit);
        }
    }

    #[test]
    fn a_closure_has_all_in_neighbours_and_no_others(
        graph in graphs(), training in training(), hops in 0_u32..4
    ) {
        let mut expected: BTreeSet<u32> = training.iter().copied().collect();
        for _ in 0..hops {
            let near: Vec<u32> =
                expected.iter().flat_map(|vertex| graph.neighbors(*vertex)).copied().collect();
            expected.extend(near);
        }
        let expected: Vec<u32> = expected.into_iter().collect();
        prop_assert_eq!(closure(&graph, &training, hops), expected);
    }

    #[test]
    fn a_relabelling_is_a_permutation_that_makes_parts_ranges(
        graph in graphs(), of in prop::collection::vec(0_u16..5, VERTICES as usize)
    ) {
        let parts = Parts::new(5, of).unwrap();
        let labels = Relabelling::new(&parts);
        for vertex in 0..VERTICES {
            let new = labels.new[vertex as usize];
            prop_assert_eq!(labels.old[new as usize], vertex);
            let part = parts.of(vertex) as usize;
            prop_assert!((labels.bounds[part]..labels.bounds[part + 1]).contains(&new));
        }
        let renamed = labels.graph(&graph);
        let mut back: Vec<_> = renamed
            .pairs()
            .map(|(a, b)| (labels.old[b as usize], labels.old[a as usize]))
            .collect();
        back.sort_unstable();
        let mut expected: Vec<_> = graph.pairs().map(|(a, b)| (b, a)).collect();
        expected.sort_unstable();
        prop_assert_eq!(back, expected);
        let weight = |(a, b): (u32, u32)| (a * VERTICES + b) as f32;
        let weights = Weights::new(graph.pairs().map(weight).collect()).unwrap();
        let expected: Vec<f32> = renamed
            .pairs()
            .map(|(a, b)| weight((labels.old[a as usize], labels.old[b as usize])))
            .collect();
        let moved = labels.weights(&graph, &weights);
        prop_assert_eq!(moved.values(), expected);
    }
}

/// Two cliques of equal size with one edge between them, their vertices in turns.
fn cliques(size: u32) -> Adjacency {
    let inside =
        |side: u32| (0..size).flat_map(move |a| (0..a).map(move |b| (2 * a + side, 2 * b + side)));
    let edges: Vec<_> = inside(0).chain(inside(1)).chain([(2 * size - 2, 2 * size - 1)]).collect();
    Adjacency::from_edges(2 * size, &edges).unwrap().symmetrized()
}

#[test]
fn methods_that_look_at_edges_find_cliques() {
    let graph = cliques(40);
    let training: Vec<u32> = (0..80).filter(|vertex| vertex % 4 < 2).collect();
    let options = Options { parts: 2, hops: 1, balance_max: 1.02, seed: 1 };
    for method in Method::all() {
        let made = partition(&graph, &training, method, &options).unwrap();
        let report = Report::new(&graph, &training, &made, 1);
        let finds = !matches!(method, Method::Hash | Method::Ranges);
        assert_eq!(report.cut == 2, finds, "{method}: {report:?}");
        assert_eq!(report.training_balance(), 1.0, "{method}");
    }
}
