//! A node whose gradients are being added to the graph.

use crate::{Error, Fill, Graph, Node, Operator, TensorId};

/// A node, the gradients of its outputs, and the gradients of its inputs that were found so far.
pub(super) struct Gradients<'a> {
    graph: &'a mut Graph,
    node: &'a Node,
    given: Vec<Option<TensorId>>,
    wanted: Vec<bool>,
    found: Vec<Option<TensorId>>,
}

impl<'a> Gradients<'a> {
    /// Creates the state from the gradients of all outputs, and from whether the gradient of each input
    /// is needed.
    pub fn new(
        graph: &'a mut Graph,
        node: &'a Node,
        given: Vec<Option<TensorId>>,
        wanted: Vec<bool>,
    ) -> Gradients<'a> {
        let found = vec![None; node.inputs.len()];
        Gradients { graph, node, given, wanted, found }
    }

    /// Returns the gradients of all inputs, in the order of the node.
    pub fn into_found(self) -> Vec<Option<TensorId>> {
        self.found
    }

    pub fn name(&self) -> &'a str {
        &self.node.name
    }

    pub fn operator(&self) -> &'a Operator {
        &self.node.operator
    }

    pub fn input(&self, index: usize) -> TensorId {
        self.node.inputs[index]
    }

    pub fn output(&self, index: usize) -> TensorId {
        self.node.outputs[index]
    }

    /// Returns the shape of an input.
    pub fn shape(&self, index: usize) -> Vec<usize> {
        self.graph.tensors[self.input(index)].shape.clone()
    }

    /// Returns whether the gradient of an input is needed.
    pub fn wants(&self, index: usize) -> bool {
        self.wanted[index]
    }

    /// Returns the gradient of an output; zero if the loss does not depend on it.
    pub fn given(&mut self, index: usize) -> Result<TensorId, Error> {
        if let Some(gradient) = self.given[index] {
            return Ok(gradient);
        }
        let shape = self.graph.tensors[self.output(index)].shape.clone();
        let zero = self.apply(Fill { shape, value: 0.0 }, &[])?[0];
        self.given[index] = Some(zero);
        Ok(zero)
    }

    /// Adds a node.
    pub fn apply(
        &mut self,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>, Error> {
        self.graph.apply(format!("{}.gradient", self.node.name), operator.into(), inputs)
    }

    /// Adds a node whose outputs are the gradients of the first inputs, in order.
    pub fn give_all(
        &mut self,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<(), Error> {
        let gradients = self.apply(operator, inputs)?;
        gradients.iter().enumerate().for_each(|(index, gradient)| self.give(index, *gradient));
        Ok(())
    }

    /// Adds a node that computes the gradient of one input, if it is needed.
    pub fn give_one(
        &mut self,
        index: usize,
        operator: impl Into<Operator>,
        inputs: &[TensorId],
    ) -> Result<(), Error> {
        if self.wants(index) {
            let gradient = self.apply(operator, inputs)?[0];
            self.give(index, gradient);
        }
        Ok(())
    }

    /// Declares a tensor to be the gradient of an input.
    pub fn give(&mut self, index: usize, gradient: TensorId) {
        if self.wanted[index] {
            self.found[index] = Some(gradient);
        }
    }
}
