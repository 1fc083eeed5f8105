//! Backward pass: adds the gradients of a graph as nodes of the same graph.

use crate::{
    Arithmetic, Element, Error, Fill, Graph, Kind, Node, NodeId, Operator, Role, TensorId,
};

mod node;
mod rules;

use node::Gradients;

/// Purpose of a node of a training graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A node of the model.
    Forward,
    /// The gradient of the loss with respect to itself.
    Seed,
    /// A node for gradients of the inputs of this node.
    Gradient(NodeId),
    /// The sum of two gradients of this tensor, which several nodes read.
    Accumulate(TensorId),
}

/// A graph with its gradients.
#[derive(Clone, Debug)]
pub struct Training {
    /// The model's nodes, followed by the nodes of its gradients, in an order in which they can be
    /// computed. The model's tensors and nodes keep their numbers.
    pub graph: Graph,
    /// For every node, its purpose.
    pub origins: Vec<Origin>,
    /// For every tensor of the model, its gradient; `None` if no parameter needs it.
    pub gradients: Vec<Option<TensorId>>,
}

impl Training {
    /// Returns the activations that the forward pass keeps for the backward pass, because gradients read
    /// them.
    pub fn saved_activations(&self) -> Vec<TensorId> {
        let tensors = self.gradients.len();
        let mut kept = vec![false; tensors];
        for (node, origin) in self.graph.nodes.iter().zip(&self.origins) {
            if *origin != Origin::Forward {
                node.inputs.iter().filter(|id| **id < tensors).for_each(|id| kept[*id] = true);
            }
        }
        let activation = |id: &TensorId| self.graph.tensors[*id].role == Role::Activation;
        (0..tensors).filter(|id| kept[*id]).filter(activation).collect()
    }
}

/// Returns the graph with the gradients of its loss with respect to all parameters.
///
/// # Errors
/// If the graph has no loss, the loss has more than one element, or an operator between the loss and a
/// parameter has no gradient.
pub fn backward(graph: &Graph) -> Result<Training, Error> {
    let none = || Error::new(Kind::Gradient, "the graph has no loss");
    let loss = graph.loss.ok_or_else(none)?;
    let shape = graph.tensors[loss].shape.clone();
    if graph.tensors[loss].elements() != 1 {
        let message = format!("the loss has shape {shape:?}, expected one element");
        return Err(Error::new(Kind::Gradient, message));
    }
    let mut tape = Tape::new(graph);
    let seed = tape.graph.apply("gradient", Fill { shape, value: 1.0 }.into(), &[])?;
    tape.mark(Origin::Seed);
    tape.gradients[loss] = Some(seed[0]);
    for id in (0..graph.nodes.len()).rev() {
        tape.visit(id, &graph.nodes[id])?;
    }
    Ok(Training { graph: tape.graph, origins: tape.origins, gradients: tape.gradients })
}

/// A training graph that is being built.
struct Tape {
    graph: Graph,
    origins: Vec<Origin>,
    gradients: Vec<Option<TensorId>>,
    /// For every tensor, whether it depends on a parameter.
    trained: Vec<bool>,
}

impl Tape {
    fn new(graph: &Graph) -> Tape {
        let parameter = |role: &Role| matches!(role, Role::Parameter(_));
        let mut trained: Vec<bool> = graph.tensors.iter().map(|t| parameter(&t.role)).collect();
        for node in &graph.nodes {
            if node.inputs.iter().any(|id| trained[*id]) {
                node.outputs.iter().for_each(|id| trained[*id] = true);
            }
        }
        Tape {
            graph: graph.clone(),
            origins: vec![Origin::Forward; graph.nodes.len()],
            gradients: vec![None; graph.tensors.len()],
            trained,
        }
    }

    /// Sets the purpose of the nodes that were added since the last call.
    fn mark(&mut self, origin: Origin) {
        self.origins.resize(self.graph.nodes.len(), origin);
    }

    /// Adds the gradients of one node.
    fn visit(&mut self, id: NodeId, node: &Node) -> Result<(), Error> {
        let given: Vec<_> = node.outputs.iter().map(|output| self.gradients[*output]).collect();
        let wanted = node.inputs.iter().map(|input| self.wants(*input)).collect::<Vec<_>>();
        if given.iter().all(Option::is_none) || !wanted.contains(&true) {
            return Ok(());
        }
        let mut gradients = Gradients::new(&mut self.graph, node, given, wanted);
        rules::gradients(&mut gradients)?;
        let found = gradients.into_found();
        self.mark(Origin::Gradient(id));
        for (input, gradient) in node.inputs.iter().zip(found) {
            if let Some(gradient) = gradient {
                self.accumulate(*input, gradient)?;
            }
        }
        Ok(())
    }

    fn wants(&self, tensor: TensorId) -> bool {
        self.trained[tensor] && self.graph.tensors[tensor].element == Element::Float
    }

    fn accumulate(&mut self, tensor: TensorId, gradient: TensorId) -> Result<(), Error> {
        let sum = match self.gradients[tensor] {
            None => gradient,
            Some(before) => {
                let name = format!("{}.gradient", self.graph.tensors[tensor].name);
                let add = Operator::from(Arithmetic::Add);
                let sum = self.graph.apply(name, add, &[before, gradient])?[0];
                self.mark(Origin::Accumulate(tensor));
                sum
            }
        };
        self.gradients[tensor] = Some(sum);
        Ok(())
    }
}
