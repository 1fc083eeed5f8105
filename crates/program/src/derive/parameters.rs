//! Parameters of a program: their layouts, the ranks that update them, and the collectives between the
//! layouts.

use thinwire_model::{Layout, TensorId};

use super::{Derivation, SUMS};
use crate::{End, Error, Message, Owner, Parameter, Slot};

impl Derivation<'_> {
    /// Derives every parameter that this stage uses.
    pub(super) fn parameters(&mut self) -> Result<Vec<Parameter>, Error> {
        let all = self.assignment.training.graph.parameters().map(|(id, _)| id);
        let stage = self.mesh.stage;
        let trained = |id: &TensorId| self.assignment.training.gradients[*id].is_some();
        let mine = all.filter(trained).filter(|id| self.assignment.users(*id).contains(&stage));
        let mine: Vec<TensorId> = mine.collect();
        mine.into_iter().enumerate().map(|(index, tensor)| self.parameter(index, tensor)).collect()
    }

    fn parameter(&mut self, index: usize, tensor: TensorId) -> Result<Parameter, Error> {
        let (assignment, stage) = (self.assignment, self.mesh.stage);
        let gradient = assignment.training.gradients[tensor].expect("it is trained");
        let home = self.slot(tensor, assignment.resident_layout(tensor, stage));
        let sum = self.slot(gradient, assignment.summed(tensor, stage));
        let updated = assignment.updated(tensor, stage);
        let reduce = self.convert(sum, &updated, Some(index))?;
        let reduced = reduce.last().map_or(sum, |convert| convert.to);
        let here = |end: &&End| assignment.stage_of(end.0) == stage;
        let shares = assignment.shares(tensor).iter().filter(here).count();
        let owner = self.owner(tensor, home, &updated)?;
        let users = assignment.users(tensor);
        let mut others = Vec::new();
        for user in users[1..].iter().filter(|_| users[0] == stage) {
            let slot = self.slot(gradient, assignment.updated(tensor, *user));
            let (peer, number) = (self.mesh.on_stage(*user), SUMS + self.number(tensor, *user));
            let converts = self.convert(slot, &updated, None)?;
            others.push(Message { converts, slot, peer, number });
        }
        let transport = assignment.transport(tensor).clone();
        Ok(Parameter { tensor, home, sum, shares, transport, reduce, reduced, others, owner })
    }

    fn owner(&mut self, tensor: TensorId, home: Slot, updated: &Layout) -> Result<Owner, Error> {
        let users = self.assignment.users(tensor);
        if users[0] != self.mesh.stage {
            let rank = self.mesh.on_stage(users[0]);
            let values = self.number(tensor, self.mesh.stage);
            return Ok(Owner::There { rank, sum: SUMS + values, values });
        }
        let worked = self.slot(tensor, updated.clone());
        let layout = self.slots[home].layout.clone();
        let restore = self.convert(worked, &layout, None)?;
        let copy = |user: &usize| {
            let layout = self.assignment.resident_layout(tensor, *user);
            let converts = self.convert(worked, &layout, None)?;
            let slot = converts.last().map_or(worked, |convert| convert.to);
            let number = self.number(tensor, *user);
            Ok(Message { converts, slot, peer: self.mesh.on_stage(*user), number })
        };
        let copies = users[1..].iter().map(copy).collect::<Result<Vec<_>, Error>>()?;
        Ok(Owner::Here { restore, copies })
    }
}
