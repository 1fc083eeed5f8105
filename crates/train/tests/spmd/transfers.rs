//! What the executor sends is what `model` counts.

use thinwire_model::{Collective, Reduction, Step};
use thinwire_program::{Encoding, Transfer};
use thinwire_schedule::Operation;
use thinwire_wire::World;

const COLLECTIVES: [Collective; 9] = [
    Collective::Slice { dim: 1 },
    Collective::ReduceScatter { reduction: Reduction::Sum, dim: 1 },
    Collective::ReduceScatter { reduction: Reduction::LogSumExp, dim: 0 },
    Collective::AllToAll { from: 0, to: 1 },
    Collective::AllToAll { from: 1, to: 0 },
    Collective::AllReduce { reduction: Reduction::Sum },
    Collective::AllReduce { reduction: Reduction::Max },
    Collective::Pad { reduction: Reduction::Sum, from: None },
    Collective::AllGather { dim: 1 },
];

/// The elements that a rank sends.
fn sent(transfer: &Transfer) -> usize {
    let tasks = transfer
        .phases
        .iter()
        .flat_map(|phase| phase.schedule.tasks.iter().zip(std::iter::repeat(phase)));
    let sends = tasks.filter_map(|(task, phase)| match task.operation {
        Operation::Send { slot, .. } => Some(phase.schedule.slots[slot.index()]),
        _ => None,
    });
    sends.sum()
}

#[test]
fn a_collective_sends_what_the_model_says() {
    for size in [2, 3, 4, 8] {
        for collective in COLLECTIVES {
            // What a rank has, and what it would have if nothing were cut.
            let local = [size * 2, size * 3];
            let cut =
                matches!(collective, Collective::AllGather { .. } | Collective::AllToAll { .. });
            let whole: usize = local.iter().product::<usize>() * if cut { size } else { 1 };
            let step = Step { mesh_dim: 0, collective, elements: whole };
            for rank in 0..size {
                let world = World::new(rank as u32, size as u32).unwrap();
                let transfer = Encoding::raw().transfer(collective, &local, world);
                let found = sent(&transfer) as f64;
                assert!(
                    (found - step.sent(size)).abs() < 1e-9,
                    "{collective:?} of {size}: {found}"
                );
            }
        }
    }
}
