//! The derivation of a rank's program from graph and plan.
//!
//! Nodes are taken in the graph's order, chunk by chunk. What a node wants is found by asking for a
//! tensor in a layout: it is there, or is converted from a layout that is there, or is received, or
//! (what was not kept for backward) is computed again. So recomputation needs no rule of its own.

use std::collections::HashMap;
use std::sync::Arc;

use thinwire_model::{Layout, NodeId, Role, Step, TensorId, Training, conversion};
use thinwire_wire::Rank;

use super::assignment::{Assignment, End, without_partial};
use super::liveness;
use super::mesh::Mesh;
use super::order::Pass;
use super::plan::{Plan, invalid};
use super::program::{Convert, Held, Instruction, Message, Owner, Parameter, Program, Slot};
use crate::error::Error;

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
    Ok(Program {
        order: plan.orders[mesh.stage].clone(),
        mesh,
        slots: derivation.slots,
        forward,
        backward,
        weight,
        parameters,
        micro_batches: plan.micro_batches,
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
            phases.push(((*chunk, Pass::Forward), std::mem::take(&mut self.list)));
        }
        for pass in [Pass::Backward, Pass::Weight] {
            for chunk in mine.iter().rev() {
                self.turn(*chunk, pass)?;
                phases.push(((*chunk, pass), std::mem::take(&mut self.list)));
            }
        }
        Ok(phases)
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
            let slot = self.need(loss, &Layout::replicated(&self.mesh.sizes))?;
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
                let slot = self.need(gradient, &layout)?;
                self.list.push(Instruction::Gradient { parameter, slot });
            }
        }
        Ok(())
    }

    /// The slot that holds a tensor in a layout, after whatever it takes.
    fn need(&mut self, tensor: TensorId, layout: &Layout) -> Result<Slot, Error> {
        let found = self.known.get(&(tensor, layout.clone())).copied();
        if let Some(slot) = found.filter(|slot| self.available[*slot]) {
            return Ok(slot);
        }
        let from = match self.nearest(tensor, layout)? {
            Some(slot) => slot,
            None => self.fetch(tensor, layout)?,
        };
        let mut list = std::mem::take(&mut self.list);
        let converts = self.convert(from, layout)?;
        let last = converts.last().map_or(from, |convert| convert.to);
        list.extend(converts.into_iter().map(Instruction::Convert));
        self.list = list;
        Ok(last)
    }

    /// The slot from which a tensor comes to a layout with the fewest elements sent.
    fn nearest(&self, tensor: TensorId, layout: &Layout) -> Result<Option<Slot>, Error> {
        let slots = (0..self.slots.len()).filter(|slot| self.available[*slot]);
        let mut best: Option<(f64, Slot)> = None;
        for slot in slots.filter(|slot| self.slots[*slot].tensor == tensor) {
            let steps = self.steps(slot, layout)?;
            let sent = steps.iter().map(|step| step.sent(self.mesh.sizes[step.mesh_dim])).sum();
            if best.is_none_or(|(least, _)| sent < least) {
                best = Some((sent, slot));
            }
        }
        Ok(best.map(|(_, slot)| slot))
    }

    fn steps(&self, from: Slot, layout: &Layout) -> Result<Vec<Step>, Error> {
        let Held { tensor, layout: start, .. } = &self.slots[from];
        let shape = &self.assignment.training.graph.tensors[*tensor].shape;
        let steps = conversion(shape, &self.mesh.sizes, start, layout);
        steps.map_err(|error| invalid(error.to_string()))
    }

    /// Brings a tensor here of which nothing is here.
    fn fetch(&mut self, tensor: TensorId, layout: &Layout) -> Result<Slot, Error> {
        let assignment = self.assignment;
        if assignment.training.graph.tensors[tensor].role == Role::Input {
            let to = self.fill(tensor, without_partial(layout));
            self.list.push(Instruction::Load { to });
            return Ok(to);
        }
        let (producer, output) = assignment.producers[tensor].expect("no source is missing");
        let stage = assignment.stage_of(producer);
        if stage != self.mesh.stage {
            let slot = self.fill(tensor, assignment.boundary(tensor, self.mesh.stage));
            let (from, number) = (self.mesh.on_stage(stage), self.number(tensor, self.mesh.stage));
            self.list.push(Instruction::Recv { slot, from, number });
            return Ok(slot);
        }
        self.compute(producer)?;
        Ok(self.slot(tensor, assignment.produced((producer, output))))
    }

    /// The collectives from a slot to another layout.
    fn convert(&mut self, from: Slot, layout: &Layout) -> Result<Vec<Convert>, Error> {
        let Held { tensor, layout: start, .. } = self.slots[from].clone();
        let steps = self.steps(from, layout)?;
        let (mut now, mut slot) = (start, from);
        let mut converts = Vec::new();
        for step in &steps {
            now.0[step.mesh_dim] = step.collective.result();
            let to = self.fill(tensor, now.clone());
            self.numbers += 1;
            converts.push(Convert { from: slot, to, step: *step, number: self.numbers });
            slot = to;
        }
        Ok(converts)
    }

    /// The slot of a tensor in a layout, which holds it from here on.
    fn fill(&mut self, tensor: TensorId, layout: Layout) -> Slot {
        let slot = self.slot(tensor, layout);
        self.available[slot] = true;
        slot
    }

    fn slot(&mut self, tensor: TensorId, layout: Layout) -> Slot {
        let sizes = &self.mesh.sizes;
        let shape =
            layout.local_shape(&self.assignment.training.graph.tensors[tensor].shape, sizes);
        let next = self.slots.len();
        let slot = *self.known.entry((tensor, layout.clone())).or_insert(next);
        if slot == next {
            self.slots.push(Held { tensor, layout, shape });
            self.available.push(false);
        }
        slot
    }

    /// The number of a tensor's message between its own stage and another one: a rank may be at
    /// work on messages of one tensor to several stages.
    fn number(&self, tensor: TensorId, stage: usize) -> u32 {
        MESSAGES + (tensor * self.assignment.plan.stages + stage) as u32
    }

    /// What becomes of every parameter that this stage uses.
    fn parameters(&mut self) -> Result<Vec<Parameter>, Error> {
        let all = self.assignment.training.graph.parameters().map(|(id, _)| id);
        let stage = self.mesh.stage;
        let trained = |id: &TensorId| self.assignment.training.gradients[*id].is_some();
        let mine = all.filter(trained).filter(|id| self.assignment.users(*id).contains(&stage));
        let mine: Vec<TensorId> = mine.collect();
        mine.into_iter().map(|tensor| self.parameter(tensor)).collect()
    }

    fn parameter(&mut self, tensor: TensorId) -> Result<Parameter, Error> {
        let (assignment, stage) = (self.assignment, self.mesh.stage);
        let gradient = assignment.training.gradients[tensor].expect("it is trained");
        let home = self.slot(tensor, assignment.home(tensor, stage));
        let sum = self.slot(gradient, assignment.summed(tensor, stage));
        let updated = assignment.updated(tensor, stage);
        let reduce = self.convert(sum, &updated)?;
        let reduced = reduce.last().map_or(sum, |convert| convert.to);
        let here = |end: &&End| assignment.stage_of(end.0) == stage;
        let shares = assignment.shares(tensor).iter().filter(here).count();
        let owner = self.owner(tensor, (home, &updated))?;
        let users = assignment.users(tensor);
        let mut others = Vec::new();
        for user in users[1..].iter().filter(|_| users[0] == stage) {
            let slot = self.slot(gradient, assignment.updated(tensor, *user));
            let (peer, number) = (self.mesh.on_stage(*user), SUMS + self.number(tensor, *user));
            let converts = self.convert(slot, &updated)?;
            others.push(Message { converts, slot, peer, number });
        }
        let codec = Arc::clone(assignment.codec(tensor));
        Ok(Parameter { tensor, home, sum, shares, codec, reduce, reduced, others, owner })
    }

    fn owner(
        &mut self,
        tensor: TensorId,
        (home, updated): (Slot, &Layout),
    ) -> Result<Owner, Error> {
        let users = self.assignment.users(tensor);
        if users[0] != self.mesh.stage {
            let rank = self.mesh.on_stage(users[0]);
            let values = self.number(tensor, self.mesh.stage);
            return Ok(Owner::There { rank, sum: SUMS + values, values });
        }
        let worked = self.slot(tensor, updated.clone());
        let layout = self.slots[home].layout.clone();
        let restore = self.convert(worked, &layout)?;
        let copy = |user: &usize| {
            let layout = self.assignment.home(tensor, *user);
            let converts = self.convert(worked, &layout)?;
            let slot = converts.last().map_or(worked, |convert| convert.to);
            let number = self.number(tensor, *user);
            Ok(Message { converts, slot, peer: self.mesh.on_stage(*user), number })
        };
        let copies = users[1..].iter().map(copy).collect::<Result<Vec<_>, Error>>()?;
        Ok(Owner::Here { restore, copies })
    }
}
