//! What holds for every graph that was read.

use thinwire_model::{Graph, backward, classes, fingerprint, summary};

/// Nodes of a graph whose gradients are derived as well.
const NODES_MAX: usize = 200;

/// Works out what commands print of a graph, and its gradients.
pub(crate) fn check_graph(graph: &Graph) {
    let of_blocks: usize = graph.blocks.iter().map(|block| block.nodes.len()).sum();
    assert_eq!(of_blocks, graph.nodes.len(), "blocks have all nodes");
    assert!(graph.loss.is_some());
    let _ = (fingerprint(graph), classes(graph), summary(graph));
    if graph.nodes.len() <= NODES_MAX {
        let _ = backward(graph);
    }
}
