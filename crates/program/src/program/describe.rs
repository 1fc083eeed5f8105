//! The text of a program.

use thinwire_model::{Graph, Step};

use super::{Instruction, Program, Slot};

impl Program {
    /// The text of the program, line by line.
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
