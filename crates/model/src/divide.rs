//! Division of a graph without blocks into blocks.
//!
//! A graph can be cut at positions that only a single tensor crosses. Pieces between such cuts that
//! repeat, such as the layers of a transformer, become equal blocks; the rest becomes one block per
//! weight. Nodes of equal blocks get equal names within the blocks, so that one line of a plan applies
//! to all of them.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{Block, Graph, Node, NodeId, Role, classes};

/// Divides a graph into blocks `block.0`, `block.1`, … The name of a node begins with the name of its
/// block.
pub fn divide(graph: &mut Graph) {
    graph.blocks = pieces(graph)
        .into_iter()
        .enumerate()
        .map(|(at, nodes)| Block { name: format!("piece.{at}"), nodes })
        .collect();
    let kinds = kinds(graph);
    let weighty: Vec<bool> =
        graph.blocks.iter().map(|block| has_weight(graph, block.nodes.clone())).collect();
    let mut groups = Vec::new();
    group(&kinds, &weighty, 0..kinds.len(), &mut groups);
    let nodes = |group: Range<usize>| {
        graph.blocks[group.start].nodes.start..graph.blocks[group.end - 1].nodes.end
    };
    let blocks = groups.into_iter().map(nodes).enumerate();
    graph.blocks = blocks.map(|(at, nodes)| Block { name: format!("block.{at}"), nodes }).collect();
    rename(graph);
}

/// Returns the nodes between the positions at which a single computed tensor, or none, crosses.
fn pieces(graph: &Graph) -> Vec<Range<NodeId>> {
    let count = graph.nodes.len();
    let producers = graph.producers();
    // How many tensors begin to be needed after a node, less those that are needed no more.
    let mut change = vec![0_i64; count + 1];
    for (made, readers) in producers.iter().zip(graph.readers()) {
        if let (Some(made), Some(last)) = (made, readers.last()) {
            change[*made] += 1;
            change[*last] -= 1;
        }
    }
    let mut across = 0;
    let mut start = 0;
    let mut pieces = Vec::new();
    for (node, change) in change[..count].iter().enumerate() {
        across += change;
        if across <= 1 || node + 1 == count {
            pieces.push(start..node + 1);
            start = node + 1;
        }
    }
    pieces
}

/// Returns the class of every block.
fn kinds(graph: &Graph) -> Vec<usize> {
    let mut kinds = vec![0; graph.blocks.len()];
    for (kind, class) in classes(graph).iter().enumerate() {
        class.blocks.iter().for_each(|block| kinds[*block] = kind);
    }
    kinds
}

/// Returns whether a node reads a parameter of more than one dimension, as products do.
fn has_weight(graph: &Graph, nodes: Range<NodeId>) -> bool {
    let mut read = graph.nodes[nodes].iter().flat_map(|node| &node.inputs);
    read.any(|id| {
        let tensor = &graph.tensors[*id];
        let dimensions = tensor.shape.iter().filter(|length| **length > 1).count();
        matches!(tensor.role, Role::Parameter(_)) && dimensions > 1
    })
}

/// Groups a range of pieces into blocks: first the pieces that repeat, and then in the same way the pieces
/// around them.
fn group(kinds: &[usize], weighty: &[bool], range: Range<usize>, groups: &mut Vec<Range<usize>>) {
    let mut waiting = vec![range];
    while let Some(range) = waiting.pop() {
        let Some((start, period, times)) = repeated(&kinds[range.clone()], &weighty[range.clone()])
        else {
            by_weight(weighty, range, groups);
            continue;
        };
        let first = range.start + start;
        let end = first + period * times;
        groups.extend((0..times).map(|at| first + at * period..first + (at + 1) * period));
        waiting.extend([range.start..first, end..range.end]);
    }
    groups.sort_by_key(|group| group.start);
}

/// Returns the repetition that covers most pieces: start, period and number of repetitions. A period counts
/// only if one of its pieces has a weight.
fn repeated(kinds: &[usize], weighty: &[bool]) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    for period in 1..=kinds.len() / 2 {
        let mut equal = 0;
        for at in period..=kinds.len() {
            if at < kinds.len() && kinds[at] == kinds[at - period] {
                equal += 1;
                continue;
            }
            let times = equal / period + 1;
            let start = at - equal - period;
            let covers = |best: (usize, usize, usize)| best.1 * best.2 < period * times;
            let counts = times > 1 && weighty[start..start + period].contains(&true);
            if counts && best.is_none_or(covers) {
                best = Some((start, period, times));
            }
            equal = 0;
        }
    }
    best
}

/// Makes a block for every piece with a weight; pieces without one join the block before.
fn by_weight(weighty: &[bool], range: Range<usize>, groups: &mut Vec<Range<usize>>) {
    let mut start = range.start;
    for at in range.clone().skip(1) {
        if weighty[at] && weighty[start..at].contains(&true) {
            groups.push(start..at);
            start = at;
        }
    }
    if start < range.end {
        groups.push(start..range.end);
    }
}

/// Gives nodes names that begin with their blocks' names, and equal names within equal blocks.
fn rename(graph: &mut Graph) {
    for class in classes(graph) {
        let first = graph.blocks[class.blocks[0]].nodes.clone();
        let names = local(&graph.nodes[first]);
        for block in class.blocks {
            let Block { name: prefix, nodes } = graph.blocks[block].clone();
            let named = graph.nodes[nodes].iter_mut().zip(&names);
            named.for_each(|(node, name)| node.name = format!("{prefix}.{name}"));
        }
    }
}

/// Returns names without their common beginning, made distinct.
fn local(nodes: &[Node]) -> Vec<String> {
    let shared = match nodes {
        [_] => 0,
        _ => shared(nodes),
    };
    let mut known = BTreeSet::new();
    let name = |(at, node): (usize, &Node)| {
        let name = node.name[shared..].to_owned();
        let name = if name.is_empty() { at.to_string() } else { name };
        match known.insert(name.clone()) {
            true => name,
            false => format!("{name}.{at}"),
        }
    };
    nodes.iter().enumerate().map(name).collect()
}

/// Returns the length of the path that all names begin with.
fn shared(nodes: &[Node]) -> usize {
    let first = &nodes[0].name;
    let common = |length: usize, node: &Node| {
        let pairs = first.bytes().zip(node.name.bytes()).take(length);
        pairs.take_while(|(a, b)| a == b).count()
    };
    let length = nodes.iter().fold(first.len(), common);
    first.as_bytes()[..length].iter().rposition(|byte| *byte == b'.').map_or(0, |at| at + 1)
}
