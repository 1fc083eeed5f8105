//! Bytes of a step: every exchange of every stage, by tensor and by kind.
//!
//! All ranks of a stage have the same instructions, so one program a stage tells them all. Each
//! exchange is the schedule that the executor runs, and its bytes are those of that schedule's
//! messages, without headers.
//!
//! Law: bytes and headers of all exchanges are the [`Program::sent_bytes`] of all ranks together.
//! Where a group is so large that it has more than [`TASKS_MAX`] tasks, one of its units stands for
//! the others, whose messages differ by a block of the codec at most.

use std::collections::HashMap;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_model::{NodeId, Origin, Role, TensorId, Training};
use thinwire_schedule::Operation;
use thinwire_wire::{HEADER_BYTES, Rank};

use crate::collective::{Encoding, Transfer};
use crate::derive::derive;
use crate::layout::Assignment;
use crate::program::{Convert, Instruction, Message, Owner, Parameter, Program, Slot};
use crate::{Error, Plan};

/// The most tasks of a group's schedules that are all looked at.
const TASKS_MAX: usize = 1 << 14;

/// The sort of tensor that an exchange moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An activation or its gradient, within a stage.
    Activation,
    /// A parameter or its gradient.
    Parameter,
    /// An activation or its gradient, between stages.
    Message,
}

/// The ranks among which an exchange takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// The ranks that differ in this dimension of the mesh alone.
    Along(usize),
    /// A rank and the one with the same coordinates on this stage, which receives.
    To(usize),
}

/// The number of times that an exchange takes place in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Times {
    /// Once.
    Once,
    /// Once in every micro-batch of a rank.
    EachMicroBatch,
}

/// An exchange that all ranks of a stage have, in groups side by side.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The stage of those who send.
    pub stage: usize,
    /// The sort of tensor.
    pub kind: Kind,
    /// The tensor of the training graph.
    pub tensor: TensorId,
    /// The tensor of the model that it is, or is a gradient of.
    pub subject: TensorId,
    /// The ranks that take part.
    pub route: Route,
    /// The number of times that it takes place.
    pub times: Times,
    /// The bytes of one group, once.
    pub volume: Arc<Volume>,
}

/// The bytes that one rank of a group sends to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The receiver's place in the group.
    pub to: usize,
    /// Bytes, without headers.
    pub bytes: u64,
    /// The number of messages.
    pub messages: u64,
}

/// The bytes that the ranks of a group send each other in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The ranks of the group.
    pub members: usize,
    /// For the first ranks of the group, or for all, who gets how much. Others send as those do, as
    /// much further on.
    sent: Vec<Vec<Sent>>,
}

/// All exchanges of a step.
#[derive(Clone, Debug)]
pub struct StepBytes {
    /// The lengths of the mesh of every stage.
    pub sizes: Vec<usize>,
    /// The number of stages.
    pub stages: usize,
    /// The exchanges of which anything is sent, stage by stage.
    pub exchanges: Vec<Exchange>,
    /// Micro-batches of a step, in the mean over the parts of the batch.
    pub micro_batches: usize,
    /// Micro-batches of every part along the first dimension of the mesh, where they differ.
    pub shares: Vec<usize>,
}

impl StepBytes {
    /// Counts the bytes of a plan's step; an element that is not encoded has so many bytes.
    ///
    /// # Errors
    /// If the plan is not one of this graph, or contradicts itself.
    pub fn of(training: &Training, plan: &Plan, element_bytes: usize) -> Result<StepBytes, Error> {
        plan.check(training)?;
        StepBytes::of_assignment(&Assignment::new(training, plan), element_bytes)
    }

    /// Counts the bytes of the step of an assignment, whose plan was checked.
    ///
    /// # Errors
    /// If the plan contradicts itself.
    pub fn of_assignment(
        assignment: &Assignment<'_>,
        element_bytes: usize,
    ) -> Result<StepBytes, Error> {
        let plan = assignment.plan;
        let mut counter = Counter {
            training: assignment.training,
            subjects: subjects(assignment),
            element_bytes,
            volumes: HashMap::new(),
            exchanges: Vec::new(),
        };
        for stage in 0..plan.stages {
            let first = Rank((stage * plan.stage_ranks()) as u32);
            counter.program(&derive(assignment, first)?);
        }
        Ok(StepBytes {
            sizes: assignment.sizes.clone(),
            stages: plan.stages,
            exchanges: counter.exchanges,
            micro_batches: plan.micro_batches,
            shares: plan.shares.iter().map(|share| share.micro_batches).collect(),
        })
    }

    /// Returns the ranks of one stage.
    pub fn width(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the bytes that all ranks of its stage send in an exchange in a step, without headers.
    pub fn bytes(&self, exchange: &Exchange) -> u64 {
        self.all_groups(exchange) * exchange.volume.bytes()
    }

    /// Returns the bytes of all ranks in a step, with the headers of messages.
    pub fn total_with_headers(&self) -> u64 {
        let header = HEADER_BYTES as u64;
        let all = self.exchanges.iter().map(|one| {
            self.all_groups(one) * (one.volume.bytes() + header * one.volume.messages())
        });
        all.sum()
    }

    /// Calls `visit` with sender, receiver and bytes of a step, for all pairs of ranks in an exchange.
    pub fn pairs(&self, exchange: &Exchange, mut visit: impl FnMut(Rank, Rank, u64)) {
        let (width, volume) = (self.width(), &exchange.volume);
        for within in 0..width {
            let from = exchange.stage * width + within;
            // The place in the group, its first rank, and from one of its ranks to the next one.
            let (at, first, next) = match exchange.route {
                Route::Along(dim) => {
                    let next: usize = self.sizes[dim + 1..].iter().product();
                    let at = within / next % self.sizes[dim];
                    (at, from - at * next, next)
                }
                Route::To(stage) => (0, stage * width + within, 0),
            };
            let times = self.times(exchange.times, within);
            for sent in volume.of(at) {
                let to = first + sent.to * next;
                visit(Rank(from as u32), Rank(to as u32), times * sent.bytes);
            }
        }
    }

    /// The number of times in a step that the rank at a place within its stage has an exchange.
    fn times(&self, times: Times, within: usize) -> u64 {
        let parts = self.sizes.first().copied().unwrap_or(1);
        let part = within / (self.width() / parts);
        match times {
            Times::Once => 1,
            Times::EachMicroBatch => {
                self.shares.get(part).copied().unwrap_or(self.micro_batches) as u64
            }
        }
    }

    /// The groups of an exchange, each as often as it exchanges in a step. Parts of the batch that do
    /// unequal work do as many micro-batches together as if they did equal work, and exchange none of
    /// them with each other.
    fn all_groups(&self, exchange: &Exchange) -> u64 {
        let times = match exchange.times {
            Times::Once => 1,
            Times::EachMicroBatch => self.micro_batches,
        };
        (self.width() / exchange.volume.members * times) as u64
    }
}

impl Volume {
    /// Returns the bytes of all ranks, without headers.
    pub fn bytes(&self) -> u64 {
        (0..self.members).flat_map(|at| self.of(at)).map(|sent| sent.bytes).sum()
    }

    /// Returns the messages of all ranks.
    pub fn messages(&self) -> u64 {
        (0..self.members).flat_map(|at| self.of(at)).map(|sent| sent.messages).sum()
    }

    /// Returns what the rank at a place of the group sends.
    pub fn of(&self, at: usize) -> impl Iterator<Item = Sent> + '_ {
        let unit = at - at % self.sent.len();
        let further = move |sent: &Sent| Sent { to: (sent.to + unit) % self.members, ..*sent };
        self.sent[at % self.sent.len()].iter().map(further)
    }

    fn message(bytes: u64) -> Volume {
        Volume { members: 1, sent: vec![vec![Sent { to: 0, bytes, messages: 1 }]] }
    }
}

/// The exchanges of programs, as they are counted.
struct Counter<'a> {
    training: &'a Training,
    /// For every tensor of the training graph the tensor of the model that it is, or is a gradient of.
    subjects: Vec<TensorId>,
    element_bytes: usize,
    volumes: HashMap<String, Arc<Volume>>,
    exchanges: Vec<Exchange>,
}

impl Counter<'_> {
    fn program(&mut self, program: &Program) {
        let passes = [&program.forward, &program.backward, &program.weight];
        let mut encodings = Encodings { program, known: HashMap::new() };
        for instruction in passes.into_iter().flatten().flatten() {
            match instruction {
                Instruction::Convert(convert) => {
                    self.convert(&mut encodings, convert, Times::EachMicroBatch);
                }
                Instruction::Send { slot, to, .. } => {
                    self.send(program, (*slot, *to), (Kind::Message, Times::EachMicroBatch));
                }
                _ => {}
            }
        }
        program.parameters.iter().for_each(|parameter| self.parameter(&mut encodings, parameter));
    }

    /// Counts the exchanges once a step of a parameter: of its gradient's sum and of new values.
    fn parameter(&mut self, encodings: &mut Encodings<'_>, parameter: &Parameter) {
        let (program, once) = (encodings.program, (Kind::Parameter, Times::Once));
        let mut all = |converts: &[Convert]| {
            converts.iter().for_each(|convert| self.convert(encodings, convert, Times::Once));
        };
        all(&parameter.reduce);
        parameter.others.iter().for_each(|other| all(&other.converts));
        match &parameter.owner {
            Owner::There { rank, .. } => self.send(program, (parameter.reduced, *rank), once),
            Owner::Here { restore, copies } => {
                all(restore);
                copies.iter().for_each(|copy| all(&copy.converts));
                for Message { slot, peer, .. } in copies {
                    self.send(program, (*slot, *peer), once);
                }
            }
        }
    }

    fn convert(&mut self, encodings: &mut Encodings<'_>, convert: &Convert, times: Times) {
        let program = encodings.program;
        let dim = convert.step.mesh_dim;
        let (held, members) = (&program.slots[convert.from], program.mesh.sizes[dim]);
        if members == 1 {
            return;
        }
        let encoding = encodings.of(convert);
        let key = format!("{:?} {:?} {members} {encoding}", convert.step.collective, held.shape);
        let element_bytes = self.element_bytes;
        let count = || {
            let transfer =
                |at| encoding.transfer(convert.step.collective, &held.shape, (members, at));
            Arc::new(volume(members, encoding.inner, element_bytes, transfer))
        };
        let volume = Arc::clone(self.volumes.entry(key).or_insert_with(count));
        if volume.sent.iter().all(Vec::is_empty) {
            return;
        }
        let (tensor, subject) = (held.tensor, self.subjects[held.tensor]);
        let kind = match self.training.graph.tensors[subject].role {
            Role::Parameter(_) => Kind::Parameter,
            _ => Kind::Activation,
        };
        let (stage, route) = (program.mesh.stage, Route::Along(dim));
        self.exchanges.push(Exchange { stage, kind, tensor, subject, route, times, volume });
    }

    fn send(&mut self, program: &Program, (slot, to): (Slot, Rank), (kind, times): (Kind, Times)) {
        let held = &program.slots[slot];
        let elements = held.shape.iter().product();
        if elements == 0 {
            return;
        }
        let bytes = bytes(&*program.message_codec(slot, to), elements, self.element_bytes);
        let (stage, route) = (program.mesh.stage, Route::To(program.mesh.stage_of(to)));
        let volume = Arc::new(Volume::message(bytes));
        let (tensor, subject) = (held.tensor, self.subjects[held.tensor]);
        self.exchanges.push(Exchange { stage, kind, tensor, subject, route, times, volume });
    }
}

/// The encodings of a program's collectives, each found once.
struct Encodings<'a> {
    program: &'a Program,
    known: HashMap<(usize, bool, Option<String>), Arc<Encoding>>,
}

impl Encodings<'_> {
    fn of(&mut self, convert: &Convert) -> Arc<Encoding> {
        let program = self.program;
        let transport = convert.gradient.map(|parameter| &program.parameters[parameter].transport);
        let transport = transport.map(|one| format!("{} {}", one.codec, one.within));
        let key = (convert.step.mesh_dim, program.slots[convert.from].encodes, transport);
        let encoding = || Arc::new(program.encoding(convert));
        Arc::clone(self.known.entry(key).or_insert_with(encoding))
    }
}

/// Counts the bytes of a group from the transfers of its members. The first unit's stand for all
/// where the group is large.
fn volume(
    members: usize,
    unit: usize,
    element_bytes: usize,
    transfer: impl Fn(usize) -> Transfer,
) -> Volume {
    let first = transfer(0);
    let tasks: usize = first.phases.iter().map(|phase| phase.schedule.tasks.len()).sum();
    let counted = if tasks * members <= TASKS_MAX { members } else { unit };
    let others = (1..counted).map(|at| sent(&transfer(at), element_bytes));
    Volume { members, sent: std::iter::once(sent(&first, element_bytes)).chain(others).collect() }
}

/// Counts the bytes that one rank sends to each other member of its group.
fn sent(transfer: &Transfer, element_bytes: usize) -> Vec<Sent> {
    let mut all: Vec<Sent> = Vec::new();
    let mut places: HashMap<Rank, usize> = HashMap::new();
    for phase in &transfer.phases {
        for task in &phase.schedule.tasks {
            let Operation::Send { slot, to, .. } = task.operation else { continue };
            let elements = phase.schedule.slots[slot.index()];
            let place = *places.entry(to).or_insert(all.len());
            if place == all.len() {
                all.push(Sent { to: to.index(), bytes: 0, messages: 0 });
            }
            all[place].bytes += match phase.schedule.is_raw(slot) {
                true => (element_bytes * elements) as u64,
                false => bytes(&*phase.codec, elements, element_bytes),
            };
            all[place].messages += 1;
        }
    }
    all
}

/// Returns the bytes of so many elements as they travel.
fn bytes(codec: &dyn Codec, elements: usize, element_bytes: usize) -> u64 {
    let bytes = if codec.is_raw() { element_bytes * elements } else { codec.encoded_len(elements) };
    bytes as u64
}

/// Returns for every tensor of a training graph the tensor of the model that it is, or is a gradient
/// of. Other tensors that gradients compute count for the first output of their node of the model.
pub fn subjects(assignment: &Assignment<'_>) -> Vec<TensorId> {
    let Training { graph, origins, gradients } = assignment.training;
    let mut all: Vec<Option<TensorId>> = vec![None; graph.tensors.len()];
    (0..gradients.len()).for_each(|tensor| all[tensor] = Some(tensor));
    // A sum's gradient is that of its terms, too: it counts for the sum.
    for (tensor, gradient) in gradients.iter().enumerate().rev() {
        let mut open: Vec<TensorId> = gradient.iter().copied().collect();
        while let Some(part) = open.pop() {
            if all[part].is_some() {
                continue;
            }
            all[part] = Some(tensor);
            let Some((node, _)) = assignment.producers[part] else { continue };
            if origins[node] == Origin::Accumulate(tensor) {
                open.extend(&graph.nodes[node].inputs);
            }
        }
    }
    let of_node = |node: NodeId| match origins[node] {
        Origin::Gradient(of) => graph.nodes[of].outputs[0],
        Origin::Accumulate(tensor) => tensor,
        Origin::Forward | Origin::Seed => graph.loss.unwrap_or(0),
    };
    let known = |(tensor, subject): (TensorId, Option<TensorId>)| {
        let producer = || assignment.producers[tensor].map_or(tensor, |(node, _)| of_node(node));
        subject.unwrap_or_else(producer)
    };
    all.into_iter().enumerate().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_send_as_the_first_unit_does() {
        let sent = |to: [usize; 2]| to.map(|to| Sent { to, bytes: 1, messages: 1 }).to_vec();
        // Units of two: within the unit, and to the same place of the next one.
        let volume = Volume { members: 6, sent: vec![sent([1, 2]), sent([0, 3])] };
        let to = |at| volume.of(at).map(|sent| sent.to).collect::<Vec<_>>();
        assert_eq!([to(0), to(1), to(2), to(5)], [[1, 2], [0, 3], [3, 4], [4, 1]]);
        assert_eq!((volume.bytes(), volume.messages()), (12, 12));
    }

    #[test]
    fn pairs_are_the_ranks_of_the_mesh() {
        let volume = Volume { members: 3, sent: vec![vec![Sent { to: 1, bytes: 5, messages: 1 }]] };
        let (stage, kind, times) = (1, Kind::Activation, Times::EachMicroBatch);
        let (tensor, subject, volume) = (0, 0, Arc::new(volume));
        let along =
            Exchange { stage, kind, tensor, subject, route: Route::Along(1), times, volume };
        let bytes = StepBytes {
            sizes: vec![2, 3, 2],
            stages: 2,
            exchanges: Vec::new(),
            micro_batches: 2,
            shares: vec![1, 3],
        };
        let mut found = Vec::new();
        bytes.pairs(&along, |from, to, sent| found.push((from.0, to.0, sent)));
        // Ranks of the second stage begin at 12; parts of the batch do one micro-batch and three.
        assert_eq!(found[..3], [(12, 14, 5), (13, 15, 5), (14, 16, 5)]);
        assert_eq!(found[4..7], [(16, 12, 5), (17, 13, 5), (18, 20, 15)]);
        assert_eq!(found.iter().map(|(.., sent)| sent).sum::<u64>(), bytes.bytes(&along));
    }
}
