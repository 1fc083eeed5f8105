//! What holds for every graph that was read.

use thinwire_model::{Graph, classes, fingerprint, summary};

/// Works out what commands print of a graph, its gradients among it.
pub(crate) fn check_graph(graph: &Graph) {
    let of_blocks: usize = graph.blocks.iter().map(|block| block.nodes.len()).sum();
    assert_eq!(of_blocks, graph.nodes.len(), "blocks have all nodes");
    assert!(graph.loss.is_some());
    let _ = (fingerprint(graph), classes(graph), summary(graph));
}
