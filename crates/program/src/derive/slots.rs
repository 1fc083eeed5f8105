//! Operands of nodes: a tensor in a layout exists already, is converted from another layout, or is loaded,
//! received, or computed again.

use thinwire_model::{Layout, Role, Step, TensorId, conversion};

use super::Derivation;
use crate::layout::without_partial;
use crate::{Convert, Error, Held, Instruction, Slot};

impl Derivation<'_> {
    /// Returns the slot that holds a tensor in a layout, after adding the instructions that are needed for
    /// it.
    pub(super) fn need(&mut self, tensor: TensorId, layout: &Layout) -> Result<Slot, Error> {
        let found = self.known.get(&(tensor, layout.clone())).copied();
        if let Some(slot) = found.filter(|slot| self.available[*slot]) {
            return Ok(slot);
        }
        let from = match self.nearest(tensor, layout)? {
            Some(slot) => slot,
            None => self.fetch(tensor, layout)?,
        };
        let mut list = std::mem::take(&mut self.list);
        let converts = self.convert(from, layout, None)?;
        let last = converts.last().map_or(from, |convert| convert.to);
        list.extend(converts.into_iter().map(Instruction::Convert));
        self.list = list;
        Ok(last)
    }

    /// Returns the slot from which a tensor can be converted to a layout with the fewest elements sent.
    fn nearest(&self, tensor: TensorId, layout: &Layout) -> Result<Option<Slot>, Error> {
        let slots = self.of_tensor.get(&tensor).into_iter().flatten();
        let mut best: Option<(f64, Slot)> = None;
        for slot in slots.filter(|slot| self.available[**slot]) {
            let steps = self.steps(*slot, layout)?;
            let sent = steps.iter().map(|step| step.sent(self.mesh.sizes[step.mesh_dim])).sum();
            if best.is_none_or(|(least, _)| sent < least) {
                best = Some((sent, *slot));
            }
        }
        Ok(best.map(|(_, slot)| slot))
    }

    fn steps(&self, from: Slot, layout: &Layout) -> Result<Vec<Step>, Error> {
        let Held { tensor, layout: start, .. } = &self.slots[from];
        let shape = &self.assignment.training.graph.tensors[*tensor].shape;
        let steps = conversion(shape, &self.mesh.sizes, start, layout);
        steps.map_err(|error| Error::invalid(error.to_string()))
    }

    /// Adds a tensor that this rank does not have in any layout.
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

    /// Derives the collectives from a slot to another layout, for a parameter's gradient or any other tensor.
    pub(super) fn convert(
        &mut self,
        from: Slot,
        layout: &Layout,
        gradient: Option<usize>,
    ) -> Result<Vec<Convert>, Error> {
        let Held { tensor, layout: start, .. } = self.slots[from].clone();
        let steps = self.steps(from, layout)?;
        let (mut now, mut slot) = (start, from);
        let mut converts = Vec::new();
        for step in &steps {
            now.0[step.mesh_dim] = step.collective.result();
            let to = self.fill(tensor, now.clone());
            self.numbers += 1;
            let number = self.numbers;
            converts.push(Convert { from: slot, to, step: *step, number, gradient });
            slot = to;
        }
        Ok(converts)
    }

    /// Returns the slot of a tensor in a layout, which is filled from here on.
    pub(super) fn fill(&mut self, tensor: TensorId, layout: Layout) -> Slot {
        let slot = self.slot(tensor, layout);
        self.available[slot] = true;
        slot
    }

    pub(super) fn slot(&mut self, tensor: TensorId, layout: Layout) -> Slot {
        let sizes = &self.mesh.sizes;
        let shape =
            layout.local_shape(&self.assignment.training.graph.tensors[tensor].shape, sizes);
        let next = self.slots.len();
        let slot = *self.known.entry((tensor, layout.clone())).or_insert(next);
        if slot == next {
            let encodes = self.assignment.encodes(tensor);
            self.slots.push(Held { tensor, layout, shape, encodes });
            self.available.push(false);
            self.of_tensor.entry(tensor).or_default().push(slot);
        }
        slot
    }
}
