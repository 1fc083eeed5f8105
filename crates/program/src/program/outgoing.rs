//! Everything by which a rank sends in a step.

use thinwire_wire::Rank;

use super::{Convert, Instruction, Owner, Parameter, Program, Slot};

/// Cause of messages to other ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outgoing<'a> {
    /// Collective within the stage.
    Convert(&'a Convert),
    /// Values of a slot, for a rank of another stage.
    Message(Slot, Rank),
}

impl Program {
    /// Returns everything by which this rank sends for each micro-batch.
    pub(crate) fn sent_in_passes(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let passes = self.forward.iter().chain(&self.backward).chain(&self.weight).flatten();
        passes.filter_map(|instruction| match instruction {
            Instruction::Convert(convert) => Some(Outgoing::Convert(convert)),
            Instruction::Send { slot, to, .. } => Some(Outgoing::Message(*slot, *to)),
            _ => None,
        })
    }

    /// Returns everything by which this rank sends once a step: sums of gradients, and new values.
    pub(crate) fn sent_for_parameters(&self) -> impl Iterator<Item = Outgoing<'_>> {
        self.parameters.iter().flat_map(sent_for)
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
