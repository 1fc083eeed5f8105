//! Passes: the instructions of a rank for one micro-batch. An evaluation runs only the forward pass.

use thinwire_model::{Array, Layout, Operator, Region};
use thinwire_program::pipeline::{Kind, Pass};
use thinwire_program::{Instruction, Mesh, Slot, freed, parts_of};

use super::{Executor, known_loss};
use crate::error::Error;
use crate::spmd::kernel;
use crate::spmd::slots::{Content, MessageEnd, When};
use crate::spmd::text::Inputs;
use crate::spmd::value::Value;

/// First micro-batch number of evaluations, which no training reaches.
const EVALUATIONS: u64 = 1 << 52;

impl Executor<'_> {
    pub(super) fn pass(&mut self, pass: Pass, data: &Inputs) -> Result<(), Error> {
        let list = std::mem::take(self.list(pass));
        let sends = |instruction: &Instruction| matches!(instruction, Instruction::Send { .. });
        let last_send = list.iter().rposition(sends);
        let mut places = 0..list.len();
        let done = places.try_for_each(|at| {
            let last_read = freed(&list[at + 1..]);
            self.execute(&list[at], &last_read, pass.micro_batch, data)?;
            // Another stage waits for what this pass sends, and nobody yet for gradients, which would
            // take the same link, and cores.
            if last_send.is_none_or(|send| send <= at) { self.reduce() } else { Ok(()) }
        });
        *self.list(pass) = list;
        done
    }

    fn list(&mut self, pass: Pass) -> &mut Vec<Instruction> {
        match pass.kind {
            Kind::Forward => &mut self.program.forward[pass.chunk],
            Kind::Backward => &mut self.program.backward[pass.chunk],
            Kind::Weight => &mut self.program.weight[pass.chunk],
        }
    }

    fn execute(
        &mut self,
        instruction: &Instruction,
        last_read: &[Slot],
        micro_batch: usize,
        data: &Inputs,
    ) -> Result<(), Error> {
        let micro_batch_number = self.micro_batch_number(micro_batch);
        match instruction {
            Instruction::Load { to } => {
                let held = &self.program.slots[*to];
                let mesh = self.program.mesh.with_first(self.source(micro_batch).1);
                let part = cut(&data[&held.tensor], &held.layout, &mesh);
                let value = Value::from_array(&part);
                self.slots.put(micro_batch, *to, Content::Here(value));
            }
            Instruction::Compute { node, inputs, outputs } => {
                self.compute(micro_batch, *node, inputs, outputs, last_read)?;
            }
            Instruction::Convert(convert) => {
                let value = self.value(micro_batch, convert.from)?;
                let content = self.slots.convert(
                    &self.program,
                    convert,
                    &value,
                    When::next(micro_batch_number),
                )?;
                self.slots.put(micro_batch, convert.to, content);
            }
            Instruction::Send { slot, to, number } => {
                let value = self.value(micro_batch, *slot)?;
                let end = MessageEnd { slot: *slot, peer: *to, number: *number };
                let when = When::next(micro_batch_number);
                self.slots.send(&self.program, end, value.into_floats(), when);
            }
            Instruction::Recv { slot, from, number } => {
                self.recv(micro_batch, MessageEnd { slot: *slot, peer: *from, number: *number });
            }
            Instruction::Gradient { parameter, slot } => {
                let value = self.value(micro_batch, *slot)?;
                last_read.iter().for_each(|slot| self.slots.free(micro_batch, *slot));
                self.share(*parameter, value);
            }
            Instruction::Loss { slot } => {
                let loss = self.value(micro_batch, *slot)?.floats()[0];
                *self.loss.get_or_insert(0.0) += loss;
            }
            Instruction::Free { slot } => self.slots.free(micro_batch, *slot),
        }
        Ok(())
    }

    /// Begins to receive all messages of a pass.
    pub(super) fn await_messages(&mut self, pass: Pass) {
        let list = std::mem::take(self.list(pass));
        for instruction in &list {
            if let Instruction::Recv { slot, from, number } = instruction {
                let end = MessageEnd { slot: *slot, peer: *from, number: *number };
                self.recv(pass.micro_batch, end);
            }
        }
        *self.list(pass) = list;
    }

    /// Begins to receive a message, unless it has begun already.
    fn recv(&mut self, micro_batch: usize, end: MessageEnd) {
        if !self.slots.is_filled(micro_batch, end.slot) {
            let micro_batch_number = self.micro_batch_number(micro_batch);
            let content = self.slots.recv(&self.program, end, micro_batch_number);
            self.slots.put(micro_batch, end.slot, content);
        }
    }

    fn compute(
        &mut self,
        micro_batch: usize,
        node: usize,
        inputs: &[Slot],
        outputs: &[Slot],
        last_read: &[Slot],
    ) -> Result<(), Error> {
        let values = inputs.iter().map(|slot| self.value(micro_batch, *slot));
        let values = values.collect::<Result<Vec<_>, Error>>()?;
        // Their last reader has them for itself.
        last_read.iter().for_each(|slot| self.slots.free(micro_batch, *slot));
        let (source, part) = self.source(micro_batch);
        let micro_batch_number =
            self.step * self.program.micro_batches_of_all as u64 + source as u64;
        let region = Region::new(&self.declarations[node], self.parts[part][node].clone())
            .with_random(self.seed, micro_batch_number);
        let operator = &self.training.graph.nodes[node].operator;
        let results = match operator {
            Operator::Dropout(_) if self.evaluating => values,
            _ => kernel::compute(operator, values, &region),
        };
        for (slot, value) in outputs.iter().zip(results) {
            self.slots.put(micro_batch, *slot, Content::Here(value));
        }
        Ok(())
    }

    /// Returns a number for a micro-batch of this step that no other micro-batch has.
    pub(super) fn micro_batch_number(&self, micro_batch: usize) -> u64 {
        match self.evaluating {
            true => EVALUATIONS + self.evaluations + micro_batch as u64,
            false => self.step * self.program.micro_batches_max as u64 + micro_batch as u64,
        }
    }

    /// Returns the micro-batch of the data to which this rank's micro-batch belongs, and the number of
    /// the part that this rank has of it.
    fn source(&self, micro_batch: usize) -> (usize, usize) {
        match self.evaluating {
            true => (micro_batch, self.program.mesh.first()),
            false => self.program.source(micro_batch),
        }
    }

    fn value(&mut self, micro_batch: usize, slot: Slot) -> Result<Value, Error> {
        self.slots.value(&self.program, micro_batch, slot)
    }

    /// Returns the mean loss of some micro-batches; all ranks call this. There is no dropout, bytes and
    /// waiting are not counted, and no slot holds anything afterwards.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn evaluate(&mut self, data: &[Inputs]) -> Result<f64, Error> {
        self.loss = None;
        self.slots.flush()?;
        let waited_s = self.slots.waited_s.get();
        self.slots.exchanges.counts = false;
        self.evaluating = true;
        let done = self.forward(data);
        self.evaluating = false;
        self.evaluations += data.len() as u64;
        self.slots.exchanges.counts = true;
        self.slots.waited_s.set(waited_s);
        done?;
        let told = self.told_loss();
        let all = self.slots.gather(&told)?;
        let losses = all.as_chunks().0.iter().map(|told| known_loss(*told));
        Ok(self.mean_loss(&losses.collect::<Vec<_>>(), data.len()))
    }

    fn forward(&mut self, data: &[Inputs]) -> Result<(), Error> {
        let chunks = self.program.forward.iter().enumerate();
        let mine = chunks.filter(|(_, list)| !list.is_empty()).map(|(chunk, _)| chunk);
        let mine: Vec<usize> = mine.collect();
        for (micro_batch, inputs) in data.iter().enumerate() {
            for chunk in &mine {
                self.pass(Pass { kind: Kind::Forward, chunk: *chunk, micro_batch }, inputs)?;
            }
            self.slots.clear();
        }
        self.slots.flush()
    }
}

/// Returns a rank's part of a tensor.
fn cut(whole: &Array, layout: &Layout, mesh: &Mesh) -> Array {
    whole.slice(&parts_of(whole.shape(), layout, mesh))
}
