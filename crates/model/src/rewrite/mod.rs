//! Rewriting: combines operators that other programs write as several nodes.
//!
//! A graph is rewritten node by node. A view of a view becomes one view, and products around a softmax become
//! attention, which keeps no scores. The graph computes the same function as before.

mod attention;
mod scores;
mod view;

use crate::{Error, Graph, Node, NodeId, Operator, Role, TensorId};

/// Returns a rewritten graph, without blocks or a loss, and the output in it. It may contain nodes that are
/// no longer read.
///
/// # Errors
/// If an operator of the graph cannot take its operands.
pub fn simplify(graph: &Graph, output: TensorId) -> Result<(Graph, TensorId), Error> {
    let mut rewriter = Rewriter::new(graph, output);
    graph.nodes.iter().try_for_each(|node| rewriter.visit(node))?;
    let output = rewriter.place(output);
    Ok((rewriter.graph, output))
}

/// A rewritten graph that is being built.
struct Rewriter {
    graph: Graph,
    /// For every tensor of the old graph, its number in the new one.
    places: Vec<Option<TensorId>>,
    /// For every tensor of the old graph, the number of its readers.
    reads: Vec<usize>,
    /// For every tensor of the new graph, the node that computes it.
    made: Vec<Option<NodeId>>,
}

impl Rewriter {
    fn new(old: &Graph, output: TensorId) -> Rewriter {
        let mut reads: Vec<usize> = old.readers().iter().map(Vec::len).collect();
        reads[output] += 1;
        let places = vec![None; old.tensors.len()];
        let mut rewriter = Rewriter { graph: Graph::default(), places, reads, made: Vec::new() };
        for (id, tensor) in old.tensors.iter().enumerate() {
            if tensor.role != Role::Activation {
                rewriter.places[id] = Some(rewriter.graph.tensors.len());
                rewriter.graph.tensors.push(tensor.clone());
                rewriter.made.push(None);
            }
        }
        rewriter
    }

    /// Returns the number, in the new graph, of a tensor of the old one.
    fn place(&self, old: TensorId) -> TensorId {
        self.places[old].expect("nodes come after those that they read")
    }

    fn visit(&mut self, node: &Node) -> Result<(), Error> {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|id| self.place(*id)).collect();
        let outputs = match &node.operator {
            Operator::Reshape(reshape) => {
                vec![self.reshape(&node.name, inputs[0], &reshape.shape)?]
            }
            Operator::Transpose(transpose) => {
                vec![self.transpose(&node.name, inputs[0], &transpose.order())?]
            }
            Operator::MatMul(product) => match self.attention(node, product, &inputs)? {
                Some(attention) => vec![attention],
                None => self.apply(&node.name, node.operator.clone(), &inputs)?,
            },
            other => self.apply(&node.name, other.clone(), &inputs)?,
        };
        for (old, new) in node.outputs.iter().zip(outputs) {
            self.places[*old] = Some(new);
        }
        Ok(())
    }

    /// Adds a node.
    fn apply(
        &mut self,
        name: &str,
        operator: Operator,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>, Error> {
        let outputs = self.graph.apply(name, operator, inputs)?;
        self.made.resize(self.graph.tensors.len(), Some(self.graph.nodes.len() - 1));
        Ok(outputs)
    }

    /// Returns the node of the new graph that computes a tensor.
    fn maker(&self, id: TensorId) -> Option<&Node> {
        self.made[id].map(|node| &self.graph.nodes[node])
    }

    fn shape(&self, id: TensorId) -> &[usize] {
        &self.graph.tensors[id].shape
    }
}
