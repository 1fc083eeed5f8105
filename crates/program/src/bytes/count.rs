//! The exchanges of programs, counted instruction by instruction.

use std::collections::HashMap;
use std::sync::Arc;

use thinwire_model::{Role, TensorId, Training};
use thinwire_wire::Rank;

use super::volume::{bytes, volume};
use super::{Exchange, Kind, Route, Times, Volume, subjects};
use crate::collective::Encoding;
use crate::{Assignment, Convert, Instruction, Message, Owner, Parameter, Program, Slot};

/// The exchanges of programs, as they are counted.
pub(super) struct Counter<'a> {
    training: &'a Training,
    /// For every tensor of the training graph the tensor of the model that it is, or is a gradient of.
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

    /// Adds the exchanges of a stage, all of whose ranks have this program's instructions.
    pub fn program(&mut self, program: &Program) {
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
