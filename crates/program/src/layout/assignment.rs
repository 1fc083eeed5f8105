//! The assignment: the chunk and strategy of every node of a training graph, and the layout of every tensor.
//!
//! A plan contains only the model's nodes. A gradient node is in the chunk of its model node, and cuts
//! the axes with the same names. A sum of gradients is formed in the layout for which conversions before
//! and after it send the fewest elements. This is the layout of its terms if they agree, the layout of
//! one of them, or the layout in which the node that computed the tensor needs its gradient. These
//! choices only affect speed, since conversions are added between any layouts.

mod place;

use std::collections::{HashMap, HashSet};

use thinwire_model::{
    Cut, Declaration, Element, Graph, Layout, NodeId, Origin, Placement, Reduction, Role, Strategy,
    Tensor, TensorId, Training,
};

use crate::pipeline::{self, Kind};
use crate::{BlockPlan, Plan, Sharding, Transport};

/// An output of a node, or an input: the node, and the index of the output or input.
pub type End = (NodeId, usize);

/// A training graph under a plan.
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
    /// The nodes that compute only gradients of parameters, if a plan has separate passes for them.
    pub apart: HashSet<NodeId>,
    /// For every node of the model, its strategy.
    forward: Vec<Strategy>,
    /// For every node of the model, the index of its block.
    blocks: Vec<usize>,
    /// For every parameter, its index in the order of parameters.
    numbers: HashMap<TensorId, usize>,
    /// The gradients of parameters.
    parameter_gradients: HashSet<TensorId>,
    /// For every tensor, the output that it is.
    pub producers: Vec<Option<End>>,
    /// For every tensor, the inputs that read it.
    pub consumers: Vec<Vec<End>>,
}

impl<'a> Assignment<'a> {
    /// Assigns all nodes.
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
            blocks: blocks(graph),
            numbers: graph.parameters().enumerate().map(|(at, (id, _))| (id, at)).collect(),
            parameter_gradients: graph
                .parameters()
                .filter_map(|(id, _)| training.gradients[id])
                .collect(),
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
        if pipeline::defers_weights(&plan.orders) {
            assignment.apart = assignment.of_parameters_alone();
        }
        assignment
    }

    /// Returns the nodes whose outputs are all shares of parameters' gradients.
    fn of_parameters_alone(&self) -> HashSet<NodeId> {
        let trained = self.training.graph.parameters().map(|(id, _)| id);
        let shares: HashSet<End> = trained.flat_map(|id| self.shares(id)).collect();
        let nodes = shares.iter().map(|(node, _)| *node);
        let outputs = |node: NodeId| 0..self.training.graph.nodes[node].outputs.len();
        nodes.filter(|node| outputs(*node).all(|at| shares.contains(&(*node, at)))).collect()
    }

    /// Returns the kind of pass to which a node belongs, if it is not left out.
    pub fn kind(&self, node: NodeId) -> Kind {
        match self.is_forward(node) {
            true => Kind::Forward,
            false if self.apart.contains(&node) => Kind::Weight,
            false => Kind::Backward,
        }
    }

    /// Returns the stage of a chunk.
    pub fn stage(&self, chunk: usize) -> usize {
        chunk % self.plan.stages
    }

    /// Returns the stage of a node.
    pub fn stage_of(&self, node: NodeId) -> usize {
        self.stage(self.chunks[node])
    }

    /// Returns whether a node belongs to the model, and not to its gradients.
    pub fn is_forward(&self, node: NodeId) -> bool {
        self.training.origins[node] == Origin::Forward
    }

    /// Returns whether a node is left out of the program, because sums of a parameter's gradient are
    /// formed elsewhere.
    pub fn is_left_out(&self, node: NodeId) -> bool {
        match self.training.origins[node] {
            Origin::Accumulate(tensor) => self.is_parameter(tensor),
            _ => false,
        }
    }

    /// Returns whether a tensor is a parameter.
    pub fn is_parameter(&self, tensor: TensorId) -> bool {
        matches!(self.training.graph.tensors[tensor].role, Role::Parameter(_))
    }

    /// Returns the layout in which an output is computed.
    pub fn produced(&self, (node, output): End) -> Layout {
        let mut layout = self.declarations[node].output_sides(output, &self.strategies[node]).value;
        if self.carries_sums(node) {
            layout.0[0] = Placement::Partial(Reduction::Sum);
        }
        layout
    }

    /// Returns the layout in which an input is needed.
    pub fn required(&self, (node, input): End) -> Layout {
        let mut layout = self.declarations[node].input_sides(input, &self.strategies[node]).value;
        let tensor = self.training.graph.nodes[node].inputs[input];
        let gradient = self.producers[tensor].is_some_and(|(made, _)| !self.is_forward(made));
        if gradient && self.carries_sums(node) {
            layout.0[0] = Placement::Partial(Reduction::Sum);
        }
        layout
    }

    /// Returns whether a gradient is computed from partial sums, which is possible because it is linear in
    /// its inputs. It must be if parts of the batch have unequal work and the node has no batch axis, such as
    /// a node for positions: the parts could form a common sum only at the step's end.
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

    /// Returns the layout in which a tensor is sent from its stage to another. This is the layout in which
    /// it is computed, or the layout in which it is first needed there if that has fewer elements or the
    /// tensor is computed as partial values.
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

    /// Returns the stages that use a parameter, in order. The first of them is its owner.
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

    /// Returns the shares of a parameter's gradient: the outputs of which it is the sum.
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

    /// Returns the layout of a parameter on a stage before it is cut for the optimiser.
    pub fn whole_resident_layout(&self, parameter: TensorId, stage: usize) -> Layout {
        let user = self.forward_users(parameter).find(|(node, _)| self.stage_of(*node) == stage);
        without_partial(&self.required(user.expect("a user of the parameter")))
    }

    /// Returns the resident layout of a parameter on a stage.
    pub fn resident_layout(&self, parameter: TensorId, stage: usize) -> Layout {
        match self.sharding(parameter) >= Sharding::Parameters {
            true => self.sharded_resident_layout(parameter, stage),
            false => self.whole_resident_layout(parameter, stage),
        }
    }

    /// Returns the layout of the part of a parameter that the optimiser updates.
    pub fn updated(&self, parameter: TensorId, stage: usize) -> Layout {
        match self.sharding(parameter) >= Sharding::Optimizer {
            true => self.sharded_resident_layout(parameter, stage),
            false => self.whole_resident_layout(parameter, stage),
        }
    }

    /// Returns the layout in which shares of a parameter's gradient are summed.
    pub fn summed(&self, parameter: TensorId, stage: usize) -> Layout {
        let sharded = self.sharded_resident_layout(parameter, stage);
        let cut = sharded != self.whole_resident_layout(parameter, stage);
        match cut && self.sharding(parameter) >= Sharding::Gradients {
            true => sharded,
            false => self.share_layout(parameter, stage),
        }
    }

    /// Returns the sharding of a parameter.
    pub fn sharding(&self, parameter: TensorId) -> Sharding {
        self.plan.sharding[self.index(parameter)]
    }

    /// Returns the transport of a parameter's gradient.
    pub fn transport(&self, parameter: TensorId) -> &Transport {
        &self.plan.codecs[self.index(parameter)]
    }

    /// Returns whether a tensor may be encoded as an activation or as its gradient. Vectors, and
    /// gradients of parameters that are vectors, are sent raw.
    pub fn encodes(&self, id: TensorId) -> bool {
        let Tensor { shape, element, role, .. } = &self.training.graph.tensors[id];
        let numbers = *role == Role::Activation && *element == Element::Float;
        numbers && shape.len() >= 2 && !self.parameter_gradients.contains(&id)
    }

    /// Returns the block of a node of the model, by its index; nodes before the first block belong to the
    /// first block.
    pub fn block(&self, node: NodeId) -> usize {
        self.blocks[node]
    }

    /// Returns whether a tensor of the model stays inside a block that is computed again for the backward
    /// pass.
    pub fn is_recomputed(&self, tensor: TensorId) -> bool {
        let Some((producer, _)) = self.producers[tensor] else { return false };
        if !self.is_forward(producer) {
            return false;
        }
        let users = self.consumers[tensor].iter().map(|(node, _)| *node);
        let mut users = users.filter(|node| self.is_forward(*node));
        let block = |node: NodeId| {
            let block = self.blocks[node];
            self.training.graph.blocks.get(block).filter(|range| range.nodes.contains(&node))?;
            Some(block)
        };
        users.all(|node| block(node) == block(producer)) && self.block_plan(producer).recompute
    }

    /// Returns the plan's settings for the block of a node of the model.
    pub fn block_plan(&self, node: NodeId) -> BlockPlan {
        let none = BlockPlan { chunk: 0, recompute: false };
        self.plan.blocks.get(self.blocks[node]).copied().unwrap_or(none)
    }

    fn index(&self, parameter: TensorId) -> usize {
        self.numbers[&parameter]
    }

    fn share_layout(&self, parameter: TensorId, stage: usize) -> Layout {
        let shares = self.shares(parameter);
        let here = shares.into_iter().find(|(node, _)| self.stage_of(*node) == stage);
        here.map_or_else(|| self.whole_resident_layout(parameter, stage), |end| self.produced(end))
    }

    /// Returns the resident layout after further cuts: along each dimension of the mesh on which the
    /// parameter is replicated and its gradient is partial, the first dimension of the tensor that can
    /// be cut is cut.
    fn sharded_resident_layout(&self, parameter: TensorId, stage: usize) -> Layout {
        let mut layout = self.whole_resident_layout(parameter, stage);
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

/// Returns the index of the block of every node; nodes before the first block belong to the first block.
fn blocks(graph: &Graph) -> Vec<usize> {
    let mut blocks = Vec::with_capacity(graph.nodes.len());
    let mut before = 0;
    for node in 0..graph.nodes.len() {
        while graph.blocks.get(before).is_some_and(|block| block.nodes.start <= node) {
            before += 1;
        }
        blocks.push(before.saturating_sub(1));
    }
    blocks
}

/// Returns a layout in which partial values are replaced by replicas.
pub fn without_partial(layout: &Layout) -> Layout {
    let whole = |placement: &Placement| match placement {
        Placement::Partial(_) => Placement::Replicated,
        other => *other,
    };
    Layout(layout.0.iter().map(whole).collect())
}
