//! Laws of every graph that is read from a file.

use thinwire_model::{Graph, classes, fingerprint, summary};

/// Checks that the blocks of a graph have all nodes, and that commands can describe the graph.
pub(crate) fn check_graph(graph: &Graph) {
    let of_blocks: usize = graph.blocks.iter().map(|block| block.nodes.len()).sum();
    assert_eq!(of_blocks, graph.nodes.len(), "blocks have all nodes");
    assert!(graph.loss.is_some());
    let _ = (fingerprint(graph), classes(graph), summary(graph));
}
