//! Blocks against a naive implementation.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use thinwire_graph::{Adjacency, Draw, FanOut, Frontier, Kind, Sample, Sampler, Sampling, Weights};
use thinwire_wire::random::Key;

const VERTICES: u32 = 40;
const KEY: Key = Key { seed: 5, step: 2, tensor: 9 };

fn graphs() -> impl Strategy<Value = Adjacency> {
    prop::collection::vec((0..VERTICES, 0..VERTICES), 0..400)
        .prop_map(|edges| Adjacency::from_edges(VERTICES, &edges).unwrap())
}

fn fan_outs() -> impl Strategy<Value = Vec<FanOut>> {
    let fan_out = prop_oneof![
        Just(FanOut::All),
        (0_u32..20).prop_map(FanOut::Limit),
        (30_u32..40).prop_map(FanOut::Limit)
    ];
    prop::collection::vec(fan_out, 0..4)
}

fn seeds() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::btree_set(0..VERTICES, 0..12)
        .prop_map(|seeds| seeds.into_iter().collect::<Vec<u32>>())
        .prop_shuffle()
}

fn frontiers() -> impl Strategy<Value = Frontier> {
    prop_oneof![Just(Frontier::All), Just(Frontier::New)]
}

fn draw(graph: &Adjacency, sampling: &Sampling, seeds: &[u32]) -> Sample {
    let mut sample = Sample::new();
    let mut sampler = Sampler::new(graph, sampling.clone()).unwrap();
    sampler.sample(graph, seeds, KEY, &mut sample).unwrap();
    sample
}

/// Numbers the vertices of a sample again, from the positions of its edges alone, with a map.
fn check(graph: &Adjacency, sampling: &Sampling, seeds: &[u32], sample: &Sample) {
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let mut vertices = Vec::new();
    let mut number = |vertex: u32, vertices: &mut Vec<u32>| {
        *numbers.entry(vertex).or_insert_with(|| {
            vertices.push(vertex);
            vertices.len() as u32 - 1
        })
    };
    for seed in seeds {
        number(*seed, &mut vertices);
    }
    let mut first = 0;
    assert_eq!(sample.blocks.len(), sampling.fan_outs.len());
    for block in &sample.blocks {
        let end = vertices.len();
        assert_eq!(block.destinations, first as u32..end as u32);
        assert_eq!(block.offsets.len(), end - first + 1);
        assert_eq!((block.offsets[0], block.neighbors.len()), (0, block.edges.len()));
        for (column, place) in (first..end).enumerate() {
            let range = block.offsets[column] as usize..block.offsets[column + 1] as usize;
            for at in range {
                let edge = block.edges[at];
                assert!(graph.range(vertices[place]).contains(&(edge as usize)));
                assert_eq!(
                    block.neighbors[at],
                    number(graph.all_neighbors()[edge as usize], &mut vertices)
                );
            }
        }
        assert_eq!(block.sources as usize, vertices.len());
        first = if sampling.frontier == Frontier::New { end } else { 0 };
    }
    assert_eq!((&sample.vertices, sample.seeds as usize), (&vertices, seeds.len()));
}

/// Returns how many edges each destination has, with how many it draws from and its fan-out.
fn counts(
    graph: &Adjacency,
    sampling: &Sampling,
    sample: &Sample,
    may: impl Fn(u64) -> bool,
) -> Vec<(usize, usize, usize)> {
    let mut counts = Vec::new();
    for (block, fan_out) in sample.blocks.iter().zip(&sampling.fan_outs) {
        for (column, place) in block.destinations.clone().enumerate() {
            let all = graph.range(sample.vertices[place as usize]);
            let degree = all.filter(|edge| may(*edge as u64)).count();
            let limit = match fan_out {
                FanOut::All => usize::MAX,
                FanOut::Limit(limit) => *limit as usize,
            };
            counts.push((block.neighbors_of(column).len(), degree, limit));
        }
    }
    counts
}

/// Asserts that no destination has an edge twice.
fn assert_distinct(sample: &Sample) {
    for block in &sample.blocks {
        for ends in block.offsets.windows(2) {
            let edges = &block.edges[ends[0] as usize..ends[1] as usize];
            assert_eq!(edges.iter().collect::<BTreeSet<_>>().len(), edges.len());
        }
    }
}

proptest! {
    #[test]
    fn distinct_blocks_are_those_of_a_naive_implementation(
        graph in graphs(), fan_outs in fan_outs(), seeds in seeds(), frontier in frontiers()
    ) {
        let sampling = Sampling { fan_outs, frontier, ..Sampling::default() };
        let sample = draw(&graph, &sampling, &seeds);
        check(&graph, &sampling, &seeds, &sample);
        assert_distinct(&sample);
        for (found, degree, limit) in counts(&graph, &sampling, &sample, |_| true) {
            prop_assert_eq!(found, degree.min(limit));
        }
    }

    #[test]
    fn repeated_blocks_have_the_fan_out(
        graph in graphs(), limits in prop::collection::vec(0_u32..9, 0..4), seeds in seeds()
    ) {
        let sampling = Sampling { draw: Draw::Repeated, ..Sampling::new(&limits) };
        let sample = draw(&graph, &sampling, &seeds);
        check(&graph, &sampling, &seeds, &sample);
        for (found, degree, limit) in counts(&graph, &sampling, &sample, |_| true) {
            prop_assert_eq!(found, if degree == 0 { 0 } else { limit });
        }
    }

    #[test]
    fn weighted_blocks_have_no_edge_of_weight_zero(
        graph in graphs(), limits in prop::collection::vec(0_u32..9, 0..4), seeds in seeds()
    ) {
        let values: Vec<f32> = (0..graph.edges()).map(|edge| (edge % 3) as f32).collect();
        let may = |edge: u64| !edge.is_multiple_of(3);
        let weights = Arc::new(Weights::new(values).unwrap());
        let sampling = Sampling { draw: Draw::Weighted(weights.clone()), ..Sampling::new(&limits) };
        let sample = draw(&graph, &sampling, &seeds);
        check(&graph, &sampling, &seeds, &sample);
        assert_distinct(&sample);
        for (found, degree, limit) in counts(&graph, &sampling, &sample, may) {
            prop_assert_eq!(found, degree.min(limit));
        }
        let sampling = Sampling { draw: Draw::WeightedRepeated(weights), ..Sampling::new(&limits) };
        let sample = draw(&graph, &sampling, &seeds);
        check(&graph, &sampling, &seeds, &sample);
        for (found, degree, limit) in counts(&graph, &sampling, &sample, may) {
            prop_assert_eq!(found, if degree == 0 { 0 } else { limit });
        }
        prop_assert!(sample.blocks.iter().flat_map(|block| &block.edges).all(|edge| may(*edge)));
    }

    #[test]
    fn samples_depend_on_no_other_batch_and_no_thread(
        graph in graphs(), batches in prop::collection::vec(seeds(), 1..8)
    ) {
        let sampling = Sampling::new(&[3, 2]);
        let key = |batch: usize| Key { tensor: batch as u32, ..KEY };
        let alone = |batch: usize| {
            let (mut sample, mut sampler) = (Sample::new(), Sampler::new(&graph, sampling.clone()).unwrap());
            sampler.sample(&graph, &batches[batch], key(batch), &mut sample).unwrap();
            sample
        };
        let mut sampler = Sampler::new(&graph, sampling.clone()).unwrap();
        let mut sample = Sample::new();
        for batch in (0..batches.len()).rev() {
            sampler.sample(&graph, &batches[batch], key(batch), &mut sample).unwrap();
            prop_assert_eq!(&sample, &alone(batch));
        }
    }
}

#[test]
fn refusals_name_both_values() {
    let graph = Adjacency::from_edges(3, &[(1, 0), (2, 0)]).unwrap();
    let mut sampler = Sampler::new(&graph, Sampling::new(&[1])).unwrap();
    let mut sample = Sample::new();
    let error = sampler.sample(&graph, &[1, 3], KEY, &mut sample).unwrap_err();
    assert_eq!(error.to_string(), "seed 1 has vertex 3, expected vertices of 0..3");
    let error = sampler.sample(&graph, &[2, 0, 2], KEY, &mut sample).unwrap_err();
    assert_eq!(error.to_string(), "seeds 0 and 2 are both vertex 2, expected each vertex once");
    let error = Weights::new(vec![0.0, 1.0, -1.0]).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (Kind::Value, "weight of edge 2 is -1, expected a finite number of at least 0")
    );
    assert!(Weights::new(vec![f32::NAN]).is_err());
    let weights = Arc::new(Weights::new(vec![1.0]).unwrap());
    let sampling = Sampling { draw: Draw::Weighted(weights), ..Sampling::new(&[1]) };
    let error = Sampler::new(&graph, sampling).unwrap_err();
    assert_eq!(error.to_string(), "1 weights, expected one per edge, 2");
    sampler.sample(&graph, &[0], KEY, &mut sample).unwrap();
    assert_eq!(sample.vertices.len(), 2, "a sampler continues after an error");
}
