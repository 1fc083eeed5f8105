//! Laws of every graph that was read.

use thinwire_model::{Graph, classes, fingerprint, summary};

/// Computes everything that commands print of a graph, including its gradients.
pub(crate) fn check_graph(graph: &Graph) {
    let of_blocks: usize = graph.blocks.iter().map(|block| block.nodes.len()).sum();
    assert_eq!(of_blocks, graph.nodes.len(), "blocks have all nodes");
    assert!(graph.loss.is_some());
    let _ = (fingerprint(graph), classes(graph), summary(graph));
}
