//! Names of nodes, each for one of them: files may call several alike.

use std::collections::{HashMap, HashSet};

use thinwire_model::Graph;

/// Nodes whose name another has already get a number after it.
pub(crate) fn distinguish(graph: &mut Graph) {
    let mut names: HashSet<String> = graph.nodes.iter().map(|node| node.name.clone()).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for node in &mut graph.nodes {
        let count = counts.entry(node.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            let mut numbered = format!("{}.{count}", node.name);
            while !names.insert(numbered.clone()) {
                *count += 1;
                numbered = format!("{}.{count}", node.name);
            }
            node.name = numbered;
        }
    }
}
