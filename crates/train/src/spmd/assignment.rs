//! The assignment: for every node of a training graph its chunk and strategy, for every tensor its
//! layout.
//!
//! A plan speaks of the model's nodes only. Gradients are in their node's chunk and cut the axes of
//! the same names. Sums of gradients are formed where least is sent, before them and behind them: as
//! their terms lie, where those agree, or as one of them does, or as the node that computed the tensor
//! wants its gradient. Nothing that is chosen here has to
//! be right: whatever layouts come of it, conversions are put between them.

mod place;

use std::collections::HashSet;

use thinwire_model::{
    Cut, Declaration, Element, Layout, NodeId, Origin, Placement, Reduction, Role, Strategy,
    Tensor, TensorId, Training,
};

use super::carriage::Carriage;
use super::order::{self, Pass};
use super::plan::{Plan, Sharding};

/// An output of a node, or an input.
pub type End = (NodeId, usize);

/// What a plan means for a training graph.
#[derive(Debug)]
pub struct Assignment<'a> {
    /// The graph with its gradients.
    pub training: &'a Training,
    /// The plan.
    pub plan: &'a Plan,
    /// The lengths of the mesh.
    pub sizes: Vec<usize>,
    /// For every node, its declaration.
    pub declarations: Vec<Declaration>,
    /// For every node, its chunk.
    pub chunks: Vec<usize>,
    /// For every node, its strategy.
    pub strategies: Vec<Strategy>,
    /// The nodes that compute nothing but gradients of parameters, where a plan puts them apart.
    pub apart: HashSet<NodeId>,
    /// For every node of the model, its strategy.
    forward: Vec<Strategy>,
    /// For every tensor, the output that it is.
    pub producers: Vec<Option<End>>,
    /// For every tensor, the inputs that it is.
    pub consumers: Vec<Vec<End>>,
}

impl<'a> Assignment<'a> {
    /// The assignment of all nodes.
    pub fn new(training: &'a Training, plan: &'a Plan) -> Assignment<'a> {
        let graph = &training.graph;
        let mut producers = vec![None; graph.tensors.len()];
        let mut consumers = vec![Vec::new(); graph.tensors.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            node.outputs.iter().enumerate().for_each(|(at, out)| producers[*out] = Some((id, at)));
            node.inputs.iter().enumerate().for_each(|(at, input)| consumers[*input].push((id, at)));
        }
        let declarations = graph.nodes.iter().map(|node| graph.declaration(node)).collect();
        let mut assignment = Assignment {
            training,
            plan,
            sizes: plan.sizes(),
            declarations,
            chunks: Vec::new(),
            strategies: Vec::new(),
            apart: HashSet::new(),
            forward: plan.strategies.clone(),
            producers,
            consumers,
        };
        if !plan.shares.is_empty() {
            assignment.gather_nothing();
        }
        for node in 0..graph.nodes.len() {
            let (chunk, strategy) = assignment.place(node);
            assignment.chunks.push(chunk);
            assignment.strategies.push(strategy);
        }
        if order::is_apart(&plan.orders) {
            assignment.apart = assignment.of_parameters_alone();
        }
        assignment
    }

    /// The nodes all of whose outputs are shares of parameters' gradients.
    fn of_parameters_alone(&self) -> HashSet<NodeId> {
        let trained = self.training.graph.parameters().map(|(id, _)| id);
        let shares: HashSet<End> = trained.flat_map(|id| self.shares(id)).collect();
        let nodes = shares.iter().map(|(node, _)| *node);
        let outputs = |node: NodeId| 0..self.training.graph.nodes[node].outputs.len();
        nodes.filter(|node| outputs(*node).all(|at| shares.contains(&(*node, at)))).collect()
    }

    /// The turn in which a node belongs, if it is not left out.
    pub fn pass(&self, node: NodeId) -> Pass {
        match self.is_forward(node) {
            true => Pass::Forward,
            false if self.apart.contains(&node) => Pass::Weight,
            false => Pass::Backward,
        }
    }

    /// The stage of a chunk.
    pub fn stage(&self, chunk: usize) -> usize {
        chunk % self.plan.stages
    }

    /// The stage of a node.
    pub fn stage_of(&self, node: NodeId) -> usize {
        self.stage(self.chunks[node])
    }

    /// Whether a node is of the model, and not of its gradients.
    pub fn is_forward(&self, node: NodeId) -> bool {
        self.training.origins[node] == Origin::Forward
    }

    /// Whether a node is left out: sums of a parameter's gradient are formed elsewhere.
    pub fn is_left_out(&self, node: NodeId) -> bool {
        match self.training.origins[node] {
            Origin::Accumulate(tensor) => self.is_parameter(tensor),
            _ => false,
        }
    }

    /// Whether a tensor is trained.
    pub fn is_parameter(&self, tensor: TensorId) -> bool {
        matches!(self.training.graph.tensors[tensor].role, Role::Parameter(_))
    }

    /// The layout in which an output is made.
    pub fn produced(&self, (node, output): End) -> Layout {
        let mut layout = self.declarations[node].output_sides(output, &self.strategies[node]).value;
        if self.carries_sums(node) {
            layout.0[0] = Placement::Partial(Reduction::Sum);
        }
        layout
    }

    /// The layout in which an input is wanted.
    pub fn required(&self, (node, input): End) -> Layout {
        let mut layout = self.declarations[node].input_sides(input, &self.strategies[node]).value;
        let tensor = self.training.graph.nodes[node].inputs[input];
        let gradient = self.producers[tensor].is_some_and(|(made, _)| !self.is_forward(made));
        if gradient && self.carries_sums(node) {
            layout.0[0] = Placement::Partial(Reduction::Sum);
        }
        layout
    }

    /// Whether a gradient is taken of partial sums, as it is linear in what comes in. So it must be
    /// where parts of the batch do unequal work and the node itself knows of no batch, as one of
    /// positions: a sum over all parts has no common moment before the step's end.
    fn carries_sums(&self, node: NodeId) -> bool {
        let gradient = matches!(self.training.origins[node], Origin::Gradient(_));
        if self.plan.shares.is_empty() || !gradient || self.strategies[node].0[0] != Cut::Whole {
            return false;
        }
        let inputs = &self.training.graph.nodes[node].inputs;
        let producers = inputs.iter().filter_map(|tensor| self.producers[*tensor]);
        let mut gradients = producers.filter(|(made, _)| !self.is_forward(*made));
        gradients.any(|end| matches!(self.produced(end).0[0], Placement::Partial(_)))
    }

    /// The layout in which a tensor goes from its stage to another: as it is made, or as it is
    /// first wanted there if that is less, or if it is partial as it is made.
    pub fn boundary(&self, tensor: TensorId, stage: usize) -> Layout {
        let produced = self.produced(self.producers[tensor].expect("only what is made is sent"));
        let there = |end: &&End| self.stage_of(end.0) == stage && !self.is_left_out(end.0);
        let first = self.consumers[tensor].iter().find(there).expect("somebody there wants it");
        let wanted = without_partial(&self.required(*first));
        let shape = &self.training.graph.tensors[tensor].shape;
        let elements = |layout: &Layout| layout.local_elements(shape, &self.sizes);
        let partial = produced.0.iter().any(|placement| matches!(placement, Placement::Partial(_)));
        if partial || elements(&wanted) < elements(&produced) { wanted } else { produced }
    }

    /// The stages that use a parameter, the owner first: the one that uses it first.
    pub fn users(&self, parameter: TensorId) -> Vec<usize> {
        let mut stages = Vec::new();
        for (node, _) in self.forward_users(parameter) {
            let stage = self.stage_of(node);
            if !stages.contains(&stage) {
                stages.push(stage);
            }
        }
        stages
    }

    /// The shares of a parameter's gradient: outputs, whose sum it is.
    pub fn shares(&self, parameter: TensorId) -> Vec<End> {
        let mut open: Vec<TensorId> = self.training.gradients[parameter].into_iter().collect();
        let mut shares = Vec::new();
        while let Some(tensor) = open.pop() {
            let end = self.producers[tensor].expect("a gradient is computed");
            match self.is_left_out(end.0) {
                true => open.extend(&self.training.graph.nodes[end.0].inputs),
                false => shares.push(end),
            }
        }
        shares
    }

    /// Where a parameter lies on a stage before it is cut for the optimiser's sake.
    pub fn whole_home(&self, parameter: TensorId, stage: usize) -> Layout {
        let user = self.forward_users(parameter).find(|(node, _)| self.stage_of(*node) == stage);
        without_partial(&self.required(user.expect("a user of the parameter")))
    }

    /// Where a parameter lies on a stage from step to step.
    pub fn home(&self, parameter: TensorId, stage: usize) -> Layout {
        match self.sharding(parameter) >= Sharding::Parameters {
            true => self.sharded_home(parameter, stage),
            false => self.whole_home(parameter, stage),
        }
    }

    /// Where the optimiser works.
    pub fn updated(&self, parameter: TensorId, stage: usize) -> Layout {
        match self.sharding(parameter) >= Sharding::State {
            true => self.sharded_home(parameter, stage),
            false => self.whole_home(parameter, stage),
        }
    }

    /// Where shares of a parameter's gradient are summed.
    pub fn summed(&self, parameter: TensorId, stage: usize) -> Layout {
        let sharded = self.sharded_home(parameter, stage);
        let cut = sharded != self.whole_home(parameter, stage);
        match cut && self.sharding(parameter) >= Sharding::Gradients {
            true => sharded,
            false => self.share_layout(parameter, stage),
        }
    }

    /// How far a parameter's state is cut.
    pub fn sharding(&self, parameter: TensorId) -> Sharding {
        self.plan.sharding[self.index(parameter)]
    }

    /// What a parameter's gradient travels by.
    pub fn carriage(&self, parameter: TensorId) -> &Carriage {
        &self.plan.codecs[self.index(parameter)]
    }

    /// Whether a tensor may travel encoded as an activation or as its gradient. What is no matrix
    /// travels as it is, as gradients of parameters do that are none.
    pub fn encodes(&self, id: TensorId) -> bool {
        let Tensor { shape, element, role, .. } = &self.training.graph.tensors[id];
        let numbers = *role == Role::Activation && *element == Element::Float;
        let mut parameters = self.training.graph.parameters();
        let of_parameter = parameters.any(|(of, _)| self.training.gradients[of] == Some(id));
        numbers && shape.len() >= 2 && !of_parameter
    }

    fn index(&self, parameter: TensorId) -> usize {
        let mut parameters = self.training.graph.parameters();
        parameters.position(|(id, _)| id == parameter).expect("a parameter")
    }

    fn share_layout(&self, parameter: TensorId, stage: usize) -> Layout {
        let shares = self.shares(parameter);
        let here = shares.into_iter().find(|(node, _)| self.stage_of(*node) == stage);
        here.map_or_else(|| self.whole_home(parameter, stage), |end| self.produced(end))
    }

    /// The home cut along the dimensions of the mesh on which it is replicated and its gradient is
    /// partial, each in the first dimension of the tensor that can be cut so.
    fn sharded_home(&self, parameter: TensorId, stage: usize) -> Layout {
        let mut layout = self.whole_home(parameter, stage);
        let gradient = self.share_layout(parameter, stage);
        let shape = &self.training.graph.tensors[parameter].shape;
        for at in 0..self.sizes.len() {
            let replicated = layout.0[at] == Placement::Replicated;
            if !replicated || !matches!(gradient.0[at], Placement::Partial(_)) {
                continue;
            }
            let cut = (0..shape.len()).map(|dim| {
                let mut cut = layout.clone();
                cut.0[at] = Placement::Sharded(dim);
                (dim, cut)
            });
            let inner = |dim: usize| layout.0[at + 1..].contains(&Placement::Sharded(dim));
            let mut possible =
                cut.filter(|(dim, cut)| !inner(*dim) && cut.fits(shape, &self.sizes));
            if let Some((_, cut)) = possible.next() {
                layout = cut;
            }
        }
        layout
    }

    fn forward_users(&self, parameter: TensorId) -> impl Iterator<Item = End> {
        self.consumers[parameter].iter().copied().filter(|(node, _)| self.is_forward(*node))
    }
}

/// A layout with replicas where values are partial.
pub fn without_partial(layout: &Layout) -> Layout {
    let whole = |placement: &Placement| match placement {
        Placement::Partial(_) => Placement::Replicated,
        other => *other,
    };
    Layout(layout.0.iter().map(whole).collect())
}
