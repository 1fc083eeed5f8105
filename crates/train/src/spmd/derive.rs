//! The derivation of a rank's program from graph and plan.
//!
//! Nodes are taken in the graph's order, chunk by chunk. What a node wants is found by asking for a
//! tensor in a layout: it is there, or is converted from a layout that is there, or is received, or
//! (what was not kept for backward) is computed again. So recomputation needs no rule of its own.

mod early;
mod parameters;
mod shares;
mod slots;

use std::collections::HashMap;

use thinwire_model::{Layout, NodeId, Placement, Reduction, TensorId, Training};
use thinwire_wire::Rank;

use super::assignment::Assignment;
use super::liveness;
use super::mesh::Mesh;
use super::order::Pass;
use super::plan::Plan;
use super::program::{Held, Instruction, Parameter, Program, Slot};
use crate::error::Error;
use early::begin_early;

/// The first number of messages between stages; below it are collectives'.
const MESSAGES: u32 = 1 << 30;
/// Added for sums of a parameter's gradient, which go the other way.
const SUMS: u32 = 1 << 29;

/// The program of one rank.
///
/// # Errors
/// If the plan is not one of this graph, or has no such rank.
pub fn program(training: &Training, plan: &Plan, rank: Rank) -> Result<Program, Error> {
    plan.check(training)?;
    let mesh = Mesh::of(plan, rank)?;
    let assignment = Assignment::new(training, plan);
    let mut derivation = Derivation {
        assignment: &assignment,
        mesh: mesh.clone(),
        slots: Vec::new(),
        known: HashMap::new(),
        available: Vec::new(),
        list: Vec::new(),
        numbers: 0,
        shared: Vec::new(),
    };
    let parameters = derivation.parameters()?;
    derivation.shared = parameters.iter().map(|parameter| parameter.tensor).collect();
    let mut phases = derivation.turns(&parameters)?;
    let homes: Vec<Slot> = parameters.iter().map(|parameter| parameter.home).collect();
    liveness::insert_frees(&mut phases, &homes);
    shares::check_alike(plan, &phases, (&derivation.slots, training))?;
    let chunks = plan.chunks();
    let empty = || vec![Vec::new(); chunks];
    let (mut forward, mut backward, mut weight) = (empty(), empty(), empty());
    for ((chunk, pass), list) in phases {
        match pass {
            Pass::Forward => forward[chunk] = list,
            Pass::Backward => backward[chunk] = list,
            Pass::Weight => weight[chunk] = list,
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
        sources: shares::sources(plan, mesh.first()),
        mesh,
        slots: derivation.slots,
        forward,
        backward,
        weight,
        parameters,
        activations: plan.activations.clone(),
    })
}

/// A program in the making.
struct Derivation<'a> {
    assignment: &'a Assignment<'a>,
    mesh: Mesh,
    slots: Vec<Held>,
    known: HashMap<(TensorId, Layout), Slot>,
    /// For every slot, whether it holds something where the program is now.
    available: Vec<bool>,
    list: Vec<Instruction>,
    numbers: u32,
    shared: Vec<TensorId>,
}

type Phase = ((usize, Pass), Vec<Instruction>);

impl Derivation<'_> {
    /// All turns of one micro-batch: forwards, then backwards, then what is apart.
    fn turns(&mut self, parameters: &[Parameter]) -> Result<Vec<Phase>, Error> {
        self.available.fill(false);
        parameters.iter().for_each(|parameter| self.available[parameter.home] = true);
        let (stage, stages) = (self.mesh.stage, self.assignment.plan.stages);
        let mine: Vec<usize> = (stage..self.assignment.plan.chunks()).step_by(stages).collect();
        let mut phases = Vec::new();
        for chunk in &mine {
            self.turn(*chunk, Pass::Forward)?;
            self.end_forward(*chunk, parameters)?;
            phases.push(((*chunk, Pass::Forward), self.take_list()));
        }
        for pass in [Pass::Backward, Pass::Weight] {
            for chunk in mine.iter().rev() {
                self.turn(*chunk, pass)?;
                phases.push(((*chunk, pass), self.take_list()));
            }
        }
        Ok(phases)
    }

    /// What was derived of one turn, in the order in which it is done.
    fn take_list(&mut self) -> Vec<Instruction> {
        begin_early(std::mem::take(&mut self.list), &self.assignment.training.origins)
    }

    fn turn(&mut self, chunk: usize, pass: Pass) -> Result<(), Error> {
        let nodes = 0..self.assignment.chunks.len();
        for node in nodes.filter(|node| self.assignment.chunks[*node] == chunk) {
            let belongs = self.assignment.pass(node) == pass;
            if belongs && !self.assignment.is_left_out(node) {
                self.compute(node)?;
                self.send_on(node)?;
                self.share(node)?;
            }
        }
        Ok(())
    }

    /// Gives the loss away, and forgets what backward is to compute or gather again.
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
        for slot in 0..self.slots.len() {
            let tensor = self.slots[slot].tensor;
            let home = parameters.iter().any(|parameter| parameter.home == slot);
            if self.is_recomputed(tensor) || self.shared.contains(&tensor) && !home {
                self.available[slot] = false;
            }
        }
        Ok(())
    }

    /// Whether a tensor is inside of a block that is computed again.
    fn is_recomputed(&self, tensor: TensorId) -> bool {
        let assignment = self.assignment;
        let Some((producer, _)) = assignment.producers[tensor] else { return false };
        if !assignment.is_forward(producer) {
            return false;
        }
        let graph = &assignment.training.graph;
        let block = |node| graph.blocks.iter().position(|block| block.nodes.contains(&node));
        let users = assignment.consumers[tensor].iter().map(|(node, _)| *node);
        let mut users = users.filter(|node| assignment.is_forward(*node));
        let inside = users.all(|node| block(node) == block(producer));
        inside && assignment.plan.block_of(graph, producer).recompute
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

    /// Sends what a node has made to the stages that want it.
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

    /// Hands over what a node has made of a parameter's gradient.
    fn share(&mut self, node: NodeId) -> Result<(), Error> {
        for parameter in 0..self.shared.len() {
            let tensor = self.shared[parameter];
            for end in self.assignment.shares(tensor).into_iter().filter(|end| end.0 == node) {
                let gradient = self.assignment.training.graph.nodes[node].outputs[end.1];
                let layout = self.assignment.summed(tensor, self.mesh.stage);
                let before = self.list.len();
                let slot = self.need(gradient, &layout)?;
                for instruction in &mut self.list[before..] {
                    if let Instruction::Convert(convert) = instruction {
                        convert.gradient = Some(parameter);
                    }
                }
                self.list.push(Instruction::Gradient { parameter, slot });
            }
        }
        Ok(())
    }

    /// The number of a tensor's message between its own stage and another one: a rank may be at
    /// work on messages of one tensor to several stages.
    fn number(&self, tensor: TensorId, stage: usize) -> u32 {
        MESSAGES + (tensor * self.assignment.plan.stages + stage) as u32
    }
}
