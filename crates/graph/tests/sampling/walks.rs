//! Random walks.

use std::collections::BTreeMap;

use thinwire_graph::{Adjacency, NO_VERTEX, walk};
use thinwire_wire::random::Key;

use crate::chances::assert_chances;

const KEY: Key = Key { seed: 5, step: 2, tensor: 9 };

#[test]
fn walks_have_the_product_of_their_chances() {
    // Vertex 3 has no in-neighbours; 1 is drawn twice as often from 0 as the others.
    let edges = [(1, 0), (1, 0), (2, 0), (3, 0), (0, 1), (3, 1), (0, 2)];
    let graph = Adjacency::from_edges(4, &edges).unwrap();
    let (starts, mut walks) = (vec![0; 20_000], Vec::new());
    walk(&graph, &starts, 2, KEY, &mut walks).unwrap();
    let mut outcomes = BTreeMap::new();
    for walk in walks.chunks(3) {
        *outcomes.entry(walk.to_vec()).or_default() += 1;
    }
    let chances =
        [([0, 1, 0], 0.25), ([0, 1, 3], 0.25), ([0, 2, 0], 0.25), ([0, 3, NO_VERTEX], 0.25)];
    assert_chances(&outcomes, &chances.map(|(walk, chance)| (walk.to_vec(), chance)).into());
}

#[test]
fn a_start_that_is_no_vertex_is_refused() {
    let graph = Adjacency::from_edges(2, &[(0, 1)]).unwrap();
    let error = walk(&graph, &[0, 2], 1, KEY, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "start 1 has vertex 2, expected vertices of 0..2");
    let mut walks = vec![7];
    walk(&graph, &[1, 0], 0, KEY, &mut walks).unwrap();
    assert_eq!(walks, [1, 0]);
}
