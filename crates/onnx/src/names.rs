//! Names of nodes, each for one of them: files may call several alike.

use std::collections::HashSet;

use thinwire_model::Graph;

/// Nodes whose name another has already get a number after it.
pub(crate) fn distinguish(graph: &mut Graph) {
    let mut names: HashSet<String> = graph.nodes.iter().map(|node| node.name.clone()).collect();
    let mut seen = HashSet::new();
    for node in &mut graph.nodes {
        if !seen.insert(node.name.clone()) {
            let numbered = (2..).map(|count| format!("{}.{count}", node.name));
            let mut free = numbered.filter(|name| !names.contains(name));
            node.name = free.next().expect("numbers do not end");
            names.insert(node.name.clone());
            seen.insert(node.name.clone());
        }
    }
}
