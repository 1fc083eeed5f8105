//! Counts the exchanges of programs, instruction by instruction.

use std::collections::HashMap;
use std::sync::Arc;

use thinwire_model::{Role, TensorId, Training};
use thinwire_wire::{Rank, World};

use super::volume::{bytes, volume};
use super::{Exchange, Kind, Route, Times, Volume, subjects};
use crate::collective::Encoding;
use crate::program::Outgoing;
use crate::{Assignment, Convert, Program, Slot};

/// The exchanges of programs that were counted so far.
pub(super) struct Counter<'a> {
    training: &'a Training,
    /// For every tensor of the training graph, the tensor of the model that it is, or of which it is a
    /// gradient.
    subjects: Vec<TensorId>,
    element_bytes: usize,
    volumes: HashMap<String, Arc<Volume>>,
    pub exchanges: Vec<Exchange>,
}

impl<'a> Counter<'a> {
    pub fn new(assignment: &Assignment<'a>, element_bytes: usize) -> Counter<'a> {
        Counter {
            training: assignment.training,
            subjects: subjects(assignment),
            element_bytes,
            volumes: HashMap::new(),
            exchanges: Vec::new(),
        }
    }

    /// Adds the exchanges of a stage; all of its ranks have this program's instructions.
    pub fn program(&mut self, program: &Program) {
        let mut encodings = Encodings { program, known: HashMap::new() };
        let passes = program.sent_in_passes().map(|it| (it, Kind::Message, Times::EachMicroBatch));
        let updates = program.sent_for_parameters().map(|it| (it, Kind::Parameter, Times::Once));
        for (outgoing, kind, times) in passes.chain(updates) {
            match outgoing {
                Outgoing::Convert(convert) => self.convert(&mut encodings, convert, times),
                Outgoing::Message(slot, to) => self.send(program, slot, to, kind, times),
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
            let transfer = |at| {
                let world = World::new(at as u32, members as u32).expect("a member of the group");
                encoding.transfer(convert.step.collective, &held.shape, world)
            };
            Arc::new(volume(members, encoding.inner, element_bytes, transfer))
        };
        let volume = Arc::clone(self.volumes.entry(key).or_insert_with(count));
        if volume.is_empty() {
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

    fn send(&mut self, program: &Program, slot: Slot, to: Rank, kind: Kind, times: Times) {
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

/// The encodings of a program's collectives, each computed once.
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
