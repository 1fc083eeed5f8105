//! Classes of equal blocks, so that one plan applies to all blocks of a class.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Block, Constant, Dropout, Graph, Operator, Role, TensorId};

/// Blocks with the same operators, shapes and wiring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The blocks, by their indices in the graph.
    pub blocks: Vec<usize>,
}

/// Returns the classes of a graph's blocks, in the order of their first blocks.
pub fn classes(graph: &Graph) -> Vec<Class> {
    let wiring = Wiring::new(graph);
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut classes: Vec<Class> = Vec::new();
    for (at, block) in graph.blocks.iter().enumerate() {
        let class = *known.entry(wiring.signature(at, block)).or_insert(classes.len());
        if class == classes.len() {
            classes.push(Class { blocks: Vec::new() });
        }
        classes[class].blocks.push(at);
    }
    classes
}

/// Returns a hash that two graphs share only if they differ at most in names.
pub fn fingerprint(graph: &Graph) -> u64 {
    let mut text = String::new();
    for tensor in &graph.tensors {
        let _ = write!(text, "{:?} {:?} {:?};", tensor.shape, tensor.element, tensor.role);
    }
    for node in &graph.nodes {
        let _ = write!(text, "{:?} {:?} {:?};", node.operator, node.inputs, node.outputs);
    }
    thinwire_wire::fingerprint(text.bytes())
}

/// Blocks that write and read each tensor.
struct Wiring<'a> {
    graph: &'a Graph,
    /// For every tensor, the block that computes it.
    made_in: Vec<Option<usize>>,
    /// For every tensor, the blocks that read it.
    read_in: Vec<Vec<usize>>,
}

impl Wiring<'_> {
    fn new(graph: &Graph) -> Wiring<'_> {
        let mut made_in = vec![None; graph.tensors.len()];
        let mut read_in = vec![Vec::new(); graph.tensors.len()];
        for (at, block) in graph.blocks.iter().enumerate() {
            for node in &graph.nodes[block.nodes.clone()] {
                node.outputs.iter().for_each(|id| made_in[*id] = Some(at));
                for id in &node.inputs {
                    if read_in[*id].last() != Some(&at) {
                        read_in[*id].push(at);
                    }
                }
            }
        }
        Wiring { graph, made_in, read_in }
    }

    /// Returns everything on which planning a block depends, as text: the operators and, for each
    /// operand, its shape, its number within the block, and the distances to the blocks that compute and
    /// read it.
    fn signature(&self, at: usize, block: &Block) -> String {
        let mut numbers: BTreeMap<TensorId, usize> = BTreeMap::new();
        let mut text = String::new();
        for node in &self.graph.nodes[block.nodes.clone()] {
            let _ = write!(text, "{:?}(", nameless(&node.operator));
            for id in node.inputs.iter().chain(&node.outputs) {
                let next = numbers.len();
                match numbers.get(id) {
                    Some(number) => drop(write!(text, "{number} ")),
                    None => {
                        numbers.insert(*id, next);
                        let _ = write!(text, "{next}{} ", self.tensor(at, *id));
                    }
                }
            }
            text.push(')');
        }
        text
    }

    fn tensor(&self, at: usize, id: TensorId) -> String {
        let tensor = &self.graph.tensors[id];
        let source = match (tensor.role, self.made_in[id]) {
            (_, Some(made)) => format!("{}", at - made),
            (Role::Parameter(_), None) => "parameter".to_owned(),
            (_, None) => "input".to_owned(),
        };
        let readers: Vec<i64> =
            self.read_in[id].iter().map(|read| *read as i64 - at as i64).collect();
        let loss = self.graph.loss == Some(id);
        format!("[{:?} {:?} {source} {readers:?} {loss}]", tensor.shape, tensor.element)
    }
}

/// Returns an operator without the fields that do not matter for planning.
fn nameless(operator: &Operator) -> Operator {
    match operator {
        Operator::Dropout(dropout) => Dropout { stream: 0, ..*dropout }.into(),
        Operator::Constant(constant) => {
            Constant { shape: constant.shape.clone(), values: [].into() }.into()
        }
        other => other.clone(),
    }
}
