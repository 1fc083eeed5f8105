//! Derivation of a rank's program from graph and plan.
//!
//! Nodes are processed in the graph's order, chunk by chunk. Each node requests its operands, which are
//! tensors in a layout. An operand may exist already. Otherwise it is converted from another layout,
//! received, or computed again if it was not kept for the backward pass. So recomputation needs no
//! separate rule.

mod early;
mod liveness;
mod parameters;
mod slots;

use std::collections::{HashMap, HashSet};

use thinwire_model::{Layout, NodeId, Placement, Reduction, TensorId, Training};
use thinwire_wire::Rank;

use crate::pipeline::Kind;
use crate::{Assignment, Error, Held, Instruction, Mesh, Parameter, Plan, Program, Slot};
use early::begin_early;
pub use liveness::insert_frees;

/// The first number of messages between stages; smaller numbers are those of collectives.
const MESSAGES: u32 = 1 << 30;
/// Offset for sums of a parameter's gradient, which are sent in the other direction.
const SUMS: u32 = 1 << 29;

/// Derives the program of one rank.
///
/// # Errors
/// If the plan is not for this graph, or has no such rank.
pub fn program(training: &Training, plan: &Plan, rank: Rank) -> Result<Program, Error> {
    plan.check(training)?;
    derive(&Assignment::new(training, plan), rank)
}

/// Derives the program of one rank from the assignment of a plan that was checked.
///
/// # Errors
/// If the plan has no such rank, or parts of the batch with unequal work would have to exchange tensors.
pub fn derive(assignment: &Assignment<'_>, rank: Rank) -> Result<Program, Error> {
    let (training, plan) = (assignment.training, assignment.plan);
    let mesh = Mesh::of(plan, rank)?;
    let mut derivation = Derivation {
        assignment,
        mesh: mesh.clone(),
        slots: Vec::new(),
        known: HashMap::new(),
        of_tensor: HashMap::new(),
        available: Vec::new(),
        list: Vec::new(),
        numbers: 0,
        trained: HashSet::new(),
        shares: HashMap::new(),
    };
    let parameters = derivation.parameters()?;
    derivation.expect_shares(&parameters);
    let mut phases = derivation.passes(&parameters)?;
    let homes: Vec<Slot> = parameters.iter().map(|parameter| parameter.home).collect();
    insert_frees(&mut phases, &homes);
    check_alike(plan, &phases, &derivation.slots, training)?;
    let chunks = plan.chunks();
    let empty = || vec![Vec::new(); chunks];
    let (mut forward, mut backward, mut weight) = (empty(), empty(), empty());
    for ((chunk, kind), list) in phases {
        match kind {
            Kind::Forward => forward[chunk] = list,
            Kind::Backward => backward[chunk] = list,
            Kind::Weight => weight[chunk] = list,
        }
    }
    let share = plan.shares.get(mesh.first());
    let orders = share.map_or(&plan.orders, |share| &share.orders);
    let counts = plan.shares.iter().map(|share| share.micro_batches);
    Ok(Program {
        order: orders[mesh.stage].clone(),
        micro_batches: share.map_or(plan.micro_batches, |share| share.micro_batches),
        micro_batches_max: counts.max().unwrap_or(plan.micro_batches),
        micro_batches_of_all: plan.micro_batches,
        sources: sources(plan, mesh.first()),
        mesh,
        slots: derivation.slots,
        forward,
        backward,
        weight,
        parameters,
        activations: plan.activations.clone(),
    })
}

/// A program that is being built.
struct Derivation<'a> {
    assignment: &'a Assignment<'a>,
    mesh: Mesh,
    slots: Vec<Held>,
    known: HashMap<(TensorId, Layout), Slot>,
    /// For every tensor, its slots in the order of their creation.
    of_tensor: HashMap<TensorId, Vec<Slot>>,
    /// For every slot, whether it has a content at this point of the program.
    available: Vec<bool>,
    list: Vec<Instruction>,
    numbers: u32,
    /// The parameters that this stage uses.
    trained: HashSet<TensorId>,
    /// For every node, the shares of gradients that it computes: the parameter, as an index of
    /// [`Program::parameters`], the number of the output, and the slot of the sum.
    shares: HashMap<NodeId, Vec<(usize, usize, Slot)>>,
}

type PassList = ((usize, Kind), Vec<Instruction>);

impl Derivation<'_> {
    /// Records which nodes compute shares of the gradients of this stage's parameters.
    fn expect_shares(&mut self, parameters: &[Parameter]) {
        for (index, parameter) in parameters.iter().enumerate() {
            self.trained.insert(parameter.tensor);
            for (node, output) in self.assignment.shares(parameter.tensor) {
                self.shares.entry(node).or_default().push((index, output, parameter.sum));
            }
        }
    }

    /// Derives all passes of one micro-batch: first forward, then backward, then separate gradients of
    /// weights.
    fn passes(&mut self, parameters: &[Parameter]) -> Result<Vec<PassList>, Error> {
        self.available.fill(false);
        parameters.iter().for_each(|parameter| self.available[parameter.home] = true);
        let (stage, stages) = (self.mesh.stage, self.assignment.plan.stages);
        let mine: Vec<usize> = (stage..self.assignment.plan.chunks()).step_by(stages).collect();
        let mut phases = Vec::new();
        for chunk in &mine {
            self.pass(*chunk, Kind::Forward)?;
            self.end_forward(*chunk, parameters)?;
            phases.push(((*chunk, Kind::Forward), self.take_list()));
        }
        for kind in [Kind::Backward, Kind::Weight] {
            for chunk in mine.iter().rev() {
                self.pass(*chunk, kind)?;
                phases.push(((*chunk, kind), self.take_list()));
            }
        }
        Ok(phases)
    }

    /// Returns the instructions of one pass, in the order in which they run.
    fn take_list(&mut self) -> Vec<Instruction> {
        begin_early(std::mem::take(&mut self.list), &self.assignment.training.origins)
    }

    fn pass(&mut self, chunk: usize, kind: Kind) -> Result<(), Error> {
        let nodes = 0..self.assignment.chunks.len();
        for node in nodes.filter(|node| self.assignment.chunks[*node] == chunk) {
            let belongs = self.assignment.kind(node) == kind;
            if belongs && !self.assignment.is_left_out(node) {
                self.compute(node)?;
                self.send_on(node)?;
                self.share(node)?;
            }
        }
        Ok(())
    }

    /// Emits the instruction for the loss, and drops the slots that the backward pass computes or
    /// gathers again.
    fn end_forward(&mut self, chunk: usize, parameters: &[Parameter]) -> Result<(), Error> {
        let loss = self.assignment.training.graph.loss.expect("a training graph has a loss");
        let (producer, _) = self.assignment.producers[loss].expect("a node computes the loss");
        if self.assignment.chunks[producer] == chunk {
            let mut layout = Layout::replicated(&self.mesh.sizes);
            if !self.assignment.plan.shares.is_empty() {
                layout.0[0] = Placement::Partial(Reduction::Sum);
            }
            let slot = self.need(loss, &layout)?;
            self.list.push(Instruction::Loss { slot });
        }
        let homes: HashSet<Slot> = parameters.iter().map(|parameter| parameter.home).collect();
        for slot in 0..self.slots.len() {
            let tensor = self.slots[slot].tensor;
            let gathered = self.trained.contains(&tensor) && !homes.contains(&slot);
            if gathered || self.assignment.is_recomputed(tensor) {
                self.available[slot] = false;
            }
        }
        Ok(())
    }

    fn compute(&mut self, node: NodeId) -> Result<(), Error> {
        let assignment = self.assignment;
        let work = &assignment.training.graph.nodes[node];
        let inputs = work.inputs.iter().enumerate().map(|(at, tensor)| {
            let layout = assignment.required((node, at));
            self.need(*tensor, &layout)
        });
        let inputs = inputs.collect::<Result<Vec<_>, Error>>()?;
        let outputs = work.outputs.iter().enumerate().map(|(at, tensor)| {
            let layout = assignment.produced((node, at));
            self.fill(*tensor, layout)
        });
        let outputs = outputs.collect();
        self.list.push(Instruction::Compute { node, inputs, outputs });
        Ok(())
    }

    /// Sends a node's outputs to the stages that need them.
    fn send_on(&mut self, node: NodeId) -> Result<(), Error> {
        let assignment = self.assignment;
        for tensor in &assignment.training.graph.nodes[node].outputs {
            let users = assignment.consumers[*tensor].iter().map(|(user, _)| *user);
            let users = users.filter(|user| !assignment.is_left_out(*user));
            let mut stages: Vec<usize> = users.map(|user| assignment.stage_of(user)).collect();
            stages.sort_unstable();
            stages.dedup();
            stages.retain(|stage| *stage != self.mesh.stage);
            for stage in stages {
                let slot = self.need(*tensor, &assignment.boundary(*tensor, stage))?;
                let to = self.mesh.on_stage(stage);
                let number = self.number(*tensor, stage);
                self.list.push(Instruction::Send { slot, to, number });
            }
        }
        Ok(())
    }

    /// Emits instructions for a node's shares of parameters' gradients.
    fn share(&mut self, node: NodeId) -> Result<(), Error> {
        for (parameter, output, sum) in self.shares.remove(&node).unwrap_or_default() {
            let gradient = self.assignment.training.graph.nodes[node].outputs[output];
            let layout = self.slots[sum].layout.clone();
            let before = self.list.len();
            let slot = self.need(gradient, &layout)?;
            for instruction in &mut self.list[before..] {
                if let Instruction::Convert(convert) = instruction {
                    convert.gradient = Some(parameter);
                }
            }
            self.list.push(Instruction::Gradient { parameter, slot });
        }
        Ok(())
    }

    /// Returns the number of a tensor's message between its own stage and another one. Numbers depend on the
    /// stage, since messages of one tensor to several stages may be under way at the same time.
    fn number(&self, tensor: TensorId, stage: usize) -> u32 {
        MESSAGES + (tensor * self.assignment.plan.stages + stage) as u32
    }
}

/// Returns the micro-batches of the whole batch that a part of the batch computes, each with its part. Parts
/// take them one after the other.
fn sources(plan: &Plan, first: usize) -> Vec<(usize, usize)> {
    let Some(share) = plan.shares.get(first) else { return Vec::new() };
    let before: usize = plan.shares[..first].iter().map(|share| share.micro_batches).sum();
    let parts = plan.shares.len();
    (before..before + share.micro_batches).map(|at| (at / parts, at % parts)).collect()
}

/// Checks that parts of the batch with unequal work exchange nothing within a micro-batch.
fn check_alike(
    plan: &Plan,
    phases: &[PassList],
    slots: &[Held],
    training: &Training,
) -> Result<(), Error> {
    if plan.shares.is_empty() {
        return Ok(());
    }
    let refused = |slot: usize| {
        let name = &training.graph.tensors[slots[slot].tensor].name;
        let message = format!("parts of the mesh do unequal work, but share '{name}'");
        Error::invalid(format!("{message}, expected the first dimension to cut batches alone"))
    };
    for instruction in phases.iter().flat_map(|(_, list)| list) {
        match instruction {
            Instruction::Convert(convert)
                if convert.step.mesh_dim == 0 && convert.step.sent(2) > 0.0 =>
            {
                return Err(refused(convert.from));
            }
            // Of one dimension are positions, which are the same for all.
            Instruction::Load { to }
                if slots[*to].layout.0[0] == Placement::Replicated
                    && slots[*to].shape.len() > 1 =>
            {
                return Err(refused(*to));
            }
            _ => {}
        }
    }
    Ok(())
}
