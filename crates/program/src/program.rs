//! The program of one rank: a step as a list of instructions.
//!
//! A slot holds a tensor in one layout, once per micro-batch. Instructions only compute, convert, send and
//! receive; all transfers are known before anything runs.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_model::{Collective, Graph, Layout, NodeId, Reduction, Step, TensorId};
use thinwire_wire::{Rank, World};

use crate::collective::{ENCODED, Encoding, Length, RAW, outermost};
use crate::pipeline::Pass;
use crate::{Mesh, Transfer, Transport};

/// The index of a slot in its program.
pub type Slot = usize;

/// The tensor of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The tensor of the training graph.
    pub tensor: TensorId,
    /// The layout of the tensor.
    pub layout: Layout,
    /// The shape of this rank's part of the tensor.
    pub shape: Vec<usize>,
    /// Whether the tensor may be encoded: it is an activation or its gradient, and has at least two
    /// dimensions.
    pub encodes: bool,
}

/// One instruction of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    /// Cuts this rank's part of an input of the model out of the data.
    Load {
        /// The slot for this rank's part of the input.
        to: Slot,
    },
    /// Computes a node on this rank's region.
    Compute {
        /// The node, of the training graph.
        node: NodeId,
        /// The slots that the node reads.
        inputs: Vec<Slot>,
        /// The slots that the node writes.
        outputs: Vec<Slot>,
    },
    /// Runs a collective along one dimension of the mesh.
    Convert(Convert),
    /// Sends a message to another stage.
    Send {
        /// The slot that is sent.
        slot: Slot,
        /// The receiver.
        to: Rank,
        /// The message's number; the same at both ends.
        number: u32,
    },
    /// Receives a message from another stage.
    Recv {
        /// The slot for the received message.
        slot: Slot,
        /// The sender.
        from: Rank,
        /// The message's number; the same at both ends.
        number: u32,
    },
    /// Hands over a micro-batch's share of a parameter's gradient, once the share is complete.
    Gradient {
        /// The parameter, as an index of [`Program::parameters`].
        parameter: usize,
        /// The slot of the share.
        slot: Slot,
    },
    /// Hands over the loss of a micro-batch.
    Loss {
        /// The slot of the loss.
        slot: Slot,
    },
    /// Frees a slot that is no longer read.
    Free {
        /// The slot that is freed.
        slot: Slot,
    },
}

/// Returns the slots that are freed directly here, before any other instruction.
pub fn freed(rest: &[Instruction]) -> Vec<Slot> {
    let frees = rest.iter().map_while(|instruction| match instruction {
        Instruction::Free { slot } => Some(*slot),
        _ => None,
    });
    frees.collect()
}

/// A collective along one dimension of the mesh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convert {
    /// The slot that is read.
    pub from: Slot,
    /// The slot for the result.
    pub to: Slot,
    /// The collective.
    pub step: Step,
    /// The collective's number; the same on all ranks that take part.
    pub number: u32,
    /// The parameter whose gradient is summed, as an index of [`Program::parameters`].
    pub gradient: Option<usize>,
}

/// A message with values of a parameter, and the collectives before it is sent or after it is received.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The collectives.
    pub converts: Vec<Convert>,
    /// The slot that is sent or received.
    pub slot: Slot,
    /// The other rank.
    pub peer: Rank,
    /// The message's number; the same at both ends.
    pub number: u32,
}

impl Message {
    /// Returns the slot from which the collectives before a message start.
    pub fn from(&self) -> Slot {
        self.converts.first().map_or(self.slot, |convert| convert.from)
    }
}

/// A parameter on this rank: its slots, and the rank that updates it.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The tensor.
    pub tensor: TensorId,
    /// The slot that remains from step to step.
    pub home: Slot,
    /// The slot of the sum of all shares of the gradient.
    pub sum: Slot,
    /// Number of shares in one micro-batch.
    pub shares: usize,
    /// The transport of the gradient when it is summed.
    pub transport: Transport,
    /// The collectives that convert the sum to the optimiser's layout, after the last share.
    pub reduce: Vec<Convert>,
    /// The slot in the optimiser's layout; it may be the sum itself.
    pub reduced: Slot,
    /// Sums from other stages that also use the parameter.
    pub others: Vec<Message>,
    /// The rank that updates the parameter.
    pub owner: Owner,
}

/// The rank that updates a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Owner {
    /// This rank updates it, and distributes the new values.
    Here {
        /// The collectives that convert new values to the resident layout.
        restore: Vec<Convert>,
        /// The messages that bring new values to other stages that use the parameter.
        copies: Vec<Message>,
    },
    /// Another rank updates it: this rank sends the sum and receives the new values, under these numbers.
    There {
        /// The rank that updates the parameter.
        rank: Rank,
        /// Number of the message with the sum.
        sum: u32,
        /// Number of the message with the new values.
        values: u32,
    },
}

/// One rank's step.
#[derive(Clone, Debug)]
pub struct Program {
    /// The position of the rank.
    pub mesh: Mesh,
    /// The slots.
    pub slots: Vec<Held>,
    /// For every chunk, its forward pass; empty if it belongs to another stage.
    pub forward: Vec<Vec<Instruction>>,
    /// For every chunk, its backward pass.
    pub backward: Vec<Vec<Instruction>>,
    /// For every chunk, its gradients of parameters, if these are separate passes.
    pub weight: Vec<Vec<Instruction>>,
    /// The passes of a step.
    pub order: Vec<Pass>,
    /// The parameters that this rank has.
    pub parameters: Vec<Parameter>,
    /// The transports of activations and their gradients.
    pub activations: Vec<Transport>,
    /// This rank's micro-batches of a step.
    pub micro_batches: usize,
    /// The largest number of micro-batches of any rank.
    pub micro_batches_max: usize,
    /// The number of micro-batches of the whole batch.
    pub micro_batches_of_all: usize,
    /// If parts of the batch have unequal work: for each of this rank's micro-batches, the micro-batch
    /// of the whole batch to which it belongs, and the number of the part. Otherwise empty.
    pub sources: Vec<(usize, usize)>,
}

/// Reason for messages to other ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outgoing<'a> {
    /// Collective within the stage.
    Convert(&'a Convert),
    /// Message with the values of a slot, for a rank of another stage.
    Message(Slot, Rank),
}

impl Program {
    /// Returns the bytes that this rank sends in one step, including headers.
    pub fn sent_bytes(&self) -> u64 {
        self.bytes(ENCODED)
    }

    /// Returns the sum of a parameter's gradient that crate `sync` makes: the last sum, once per step, over
    /// the ranks that have shares of it. `None` if no other rank has a share.
    pub fn exchanged(&self, parameter: usize) -> Option<&Convert> {
        let sums = |convert: &&Convert| {
            matches!(
                convert.step.collective,
                Collective::AllReduce { reduction: Reduction::Sum }
                    | Collective::ReduceScatter { reduction: Reduction::Sum, .. }
            )
        };
        self.parameters[parameter].reduce.last().filter(sums)
    }

    /// Returns the bytes of a step that this rank sends in addition to the sums of [`Program::exchanged`],
    /// including headers.
    pub fn other_bytes(&self) -> u64 {
        let exchanged = (0..self.parameters.len()).filter_map(|index| self.exchanged(index));
        self.sent_bytes() - exchanged.map(|sum| self.transfer(sum).sent_bytes()).sum::<u64>()
    }

    /// Returns whether this is the program of the only rank of a plan.
    pub fn is_alone(&self) -> bool {
        self.mesh.sizes.iter().all(|size| *size == 1) && !self.forward.iter().any(Vec::is_empty)
    }

    /// Returns the bytes that this rank would send in one step if all values were sent as f32.
    pub fn raw_bytes(&self) -> u64 {
        self.bytes(RAW)
    }

    fn bytes(&self, length: Length) -> u64 {
        let sent = |outgoing: Outgoing<'_>| match outgoing {
            Outgoing::Convert(convert) => self.transfer(convert).bytes(length),
            Outgoing::Message(slot, peer) => self.message_bytes(slot, peer, length),
        };
        let per_micro_batch: u64 = self.sent_in_passes().map(sent).sum();
        per_micro_batch * self.micro_batches as u64
            + self.sent_for_parameters().map(sent).sum::<u64>()
    }

    /// Returns, for one of this rank's micro-batches, the micro-batch of the whole batch to which it
    /// belongs, and the number of the part.
    pub fn source(&self, micro_batch: usize) -> (usize, usize) {
        let alike = (micro_batch, self.mesh.first());
        self.sources.get(micro_batch).copied().unwrap_or(alike)
    }

    /// Returns the numbers of exchanges that keep a residual, each with its number of elements.
    pub fn owed(&self) -> Vec<(u32, usize)> {
        let owed = |outgoing: Outgoing<'_>| match outgoing {
            Outgoing::Convert(convert) if convert.gradient.is_some() => {
                Some((convert.number, self.transfer(convert).owed()?))
            }
            _ => None,
        };
        self.sent_in_passes().chain(self.sent_for_parameters()).filter_map(owed).collect()
    }

    /// Returns the schedules of a collective.
    pub fn transfer(&self, convert: &Convert) -> Transfer {
        let Step { mesh_dim, collective, .. } = convert.step;
        let (size, at) = (self.mesh.sizes[mesh_dim], self.mesh.coordinates[mesh_dim]);
        let world = World::new(at as u32, size as u32).expect("a rank is in its group");
        self.encoding(convert).transfer(collective, &self.slots[convert.from].shape, world)
    }

    /// Returns the encoding of a collective's values.
    pub fn encoding(&self, convert: &Convert) -> Encoding {
        let groups = || self.mesh.groups(convert.step.mesh_dim);
        if let Some(parameter) = convert.gradient {
            let (codec, inner) = self.parameters[parameter].transport.of_groups(groups);
            return Encoding { codec, inner, activation: false };
        }
        if self.activations.is_empty() || !self.slots[convert.from].encodes {
            return Encoding::raw();
        }
        outermost(&self.activations, &groups()).map_or_else(Encoding::raw, |transport| {
            let (codec, inner) = transport.of_groups(groups);
            Encoding { codec, inner, activation: true }
        })
    }

    /// Returns the codec of a slot's messages to or from another stage.
    pub fn message_codec(&self, slot: Slot, peer: Rank) -> Arc<dyn Codec> {
        if self.activations.is_empty() || !self.slots[slot].encodes {
            return thinwire_codec::raw();
        }
        let pairs = self.mesh.pairs([self.mesh.stage, self.mesh.stage_of(peer)]);
        let transport = outermost(&self.activations, &pairs);
        transport.map_or_else(thinwire_codec::raw, |transport| Arc::clone(&transport.codec))
    }

    fn message_bytes(&self, slot: Slot, peer: Rank, length: Length) -> u64 {
        let codec = self.message_codec(slot, peer);
        match self.slots[slot].shape.iter().product() {
            0 => 0,
            elements => (length(&*codec, elements) + thinwire_wire::HEADER_BYTES) as u64,
        }
    }

    /// Returns everything that this rank sends for each micro-batch.
    pub(crate) fn sent_in_passes(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let passes = self.forward.iter().chain(&self.backward).chain(&self.weight).flatten();
        passes.filter_map(|instruction| match instruction {
            Instruction::Convert(convert) => Some(Outgoing::Convert(convert)),
            Instruction::Send { slot, to, .. } => Some(Outgoing::Message(*slot, *to)),
            _ => None,
        })
    }

    /// Returns everything that this rank sends once per step: sums of gradients, and new values.
    pub(crate) fn sent_for_parameters(&self) -> impl Iterator<Item = Outgoing<'_>> {
        self.parameters.iter().flat_map(sent_for)
    }

    /// Returns the program as text, line by line.
    pub fn describe(&self, graph: &Graph) -> String {
        let name = |slot: &Slot| {
            let held = &self.slots[*slot];
            format!("{}{}", graph.tensors[held.tensor].name, held.layout)
        };
        let line = |instruction: &Instruction| match instruction {
            Instruction::Load { to } => format!("load {}", name(to)),
            Instruction::Compute { node, inputs, outputs } => {
                let list = |slots: &[Slot]| slots.iter().map(name).collect::<Vec<_>>().join(" ");
                let operator = graph.nodes[*node].operator.name();
                format!("{operator} {} -> {}", list(inputs), list(outputs))
            }
            Instruction::Convert(convert) => {
                let Step { mesh_dim, collective, .. } = convert.step;
                format!(
                    "{} -> {} by {collective:?} on {mesh_dim}",
                    name(&convert.from),
                    name(&convert.to)
                )
            }
            Instruction::Send { slot, to, .. } => format!("send {} to {to}", name(slot)),
            Instruction::Recv { slot, from, .. } => format!("recv {} from {from}", name(slot)),
            Instruction::Gradient { slot, .. } => format!("gradient {}", name(slot)),
            Instruction::Loss { slot } => format!("loss {}", name(slot)),
            Instruction::Free { slot } => format!("free {}", name(slot)),
        };
        let phases =
            [("forward", &self.forward), ("backward", &self.backward), ("weight", &self.weight)];
        let lines = phases.iter().flat_map(|(phase, chunks)| {
            let chunks = chunks.iter().enumerate().filter(|(_, list)| !list.is_empty());
            chunks.flat_map(move |(chunk, list)| {
                std::iter::once(format!("{phase} {chunk}")).chain(list.iter().map(line))
            })
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn sent_for(parameter: &Parameter) -> impl Iterator<Item = Outgoing<'_>> {
    let others = parameter.others.iter().flat_map(|other| &other.converts);
    let mut converts: Vec<&Convert> = parameter.reduce.iter().chain(others).collect();
    let messages = match &parameter.owner {
        Owner::There { rank, .. } => vec![Outgoing::Message(parameter.reduced, *rank)],
        Owner::Here { restore, copies } => {
            converts.extend(restore.iter().chain(copies.iter().flat_map(|copy| &copy.converts)));
            copies.iter().map(|copy| Outgoing::Message(copy.slot, copy.peer)).collect()
        }
    };
    converts.into_iter().map(Outgoing::Convert).chain(messages)
}
