//! Layer-wise samples.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use thinwire_graph::{Adjacency, Importance, LayerSampler, Sample};
use thinwire_wire::random::Key;

use crate::chances::assert_chances;

const KEY: Key = Key { seed: 5, step: 2, tensor: 9 };

fn importances() -> impl Strategy<Value = Importance> {
    prop_oneof![Just(Importance::Layer), Just(Importance::Graph)]
}

proptest! {
    #[test]
    fn a_hop_has_all_edges_from_the_vertices_that_it_draws(
        edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..300),
        seeds in prop::collection::btree_set(0_u32..40, 0..9),
        sizes in prop::collection::vec(0_u32..20, 0..4),
        importance in importances(),
    ) {
        let graph = Adjacency::from_edges(40, &edges).unwrap();
        let seeds: Vec<u32> = seeds.into_iter().collect();
        let mut sampler = LayerSampler::new(&graph, &sizes, importance);
        let mut sample = Sample::new();
        sampler.sample(&graph, &seeds, KEY, &mut sample).unwrap();
        let again = sample.clone();
        sampler.sample(&graph, &seeds, KEY, &mut sample).unwrap();
        prop_assert_eq!(&sample, &again);
        prop_assert_eq!(&sample.vertices[..sample.seeds as usize], &seeds);
        prop_assert_eq!(sample.vertices.iter().collect::<BTreeSet<_>>().len(), sample.vertices.len());
        let mut before = seeds.len();
        for (block, size) in sample.blocks.iter().zip(sizes) {
            let destinations = &sample.vertices[..before];
            prop_assert_eq!(&block.destinations, &(0..before as u32));
            let source = |number: &u32| sample.vertices[*number as usize];
            let drawn: BTreeSet<u32> = block.neighbors.iter().map(source).collect();
            let all: BTreeSet<u32> = destinations.iter().flat_map(|v| graph.neighbors(*v)).copied().collect();
            prop_assert_eq!(drawn.len(), all.len().min(size as usize));
            for (column, vertex) in destinations.iter().enumerate() {
                let neighbors: Vec<u32> = block.neighbors_of(column).iter().map(source).collect();
                let expected = graph.neighbors(*vertex).iter().filter(|v| drawn.contains(v));
                prop_assert!(neighbors.iter().eq(expected));
                let range = block.offsets[column] as usize..block.offsets[column + 1] as usize;
                let sum: f32 = block.weights[range.clone()].iter().sum();
                prop_assert!(range.is_empty() || (sum - 1.0).abs() < 1e-5);
                for at in range {
                    prop_assert_eq!(graph.neighbor(block.edges[at]), source(&block.neighbors[at]));
                }
            }
            before = block.sources as usize;
        }
    }
}

#[test]
fn vertices_are_drawn_by_their_importance() {
    let edges = [(2, 0), (3, 0), (3, 1), (4, 1), (5, 1), (2, 6)];
    let graph = Adjacency::from_edges(7, &edges).unwrap();
    let (quarter, ninth) = (0.25, 1.0 / 9.0);
    for (importance, of_two) in [(Importance::Layer, quarter), (Importance::Graph, 1.25)] {
        let scores = [(2, of_two), (3, quarter + ninth), (4, ninth), (5, ninth)];
        let sum: f64 = scores.iter().map(|(_, score)| score).sum();
        let chances = scores.map(|(vertex, score)| (vec![vertex], score / sum)).into();
        let mut sampler = LayerSampler::new(&graph, &[1], importance);
        let (mut sample, mut outcomes) = (Sample::new(), BTreeMap::new());
        for step in 0..20_000 {
            sampler.sample(&graph, &[0, 1], Key { step, ..KEY }, &mut sample).unwrap();
            *outcomes.entry(sample.vertices[2..].to_vec()).or_default() += 1;
        }
        assert_chances(&outcomes, &chances);
    }
}
