//! Random plans: any strategy at any node, any stages, order, micro-batches, state and recomputation.

use proptest::prelude::*;
use thinwire_model::Graph;
use thinwire_program::pipeline::Schedule;
use thinwire_program::{BlockPlan, MeshDim, Plan, Sharding};
use thinwire_wire::random::Key;

use crate::codecs::transport;
use crate::laws::{GPT, LLAMA, MOE, Model, VGG};
use crate::plans;

/// Meshes and stages of at most eight ranks.
const MESHES: [&[usize]; 6] = [&[], &[2], &[4], &[2, 2], &[4, 2], &[2, 4]];

/// What activations may travel by.
const CODECS: [&str; 5] = ["none", "f16", "bf16", "int8", "int8:stochastic"];

struct Dice {
    key: Key,
    thrown: u64,
}

impl Dice {
    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        self.thrown += 1;
        choices[self.key.below(self.thrown, choices.len() as u32) as usize].clone()
    }
}

fn plan(graph: &Graph, dice: &mut Dice) -> Plan {
    let sizes = dice.of(&MESHES);
    let mesh = sizes.iter().enumerate();
    let mesh = mesh.map(|(at, size)| MeshDim { name: format!("m{at}"), size: *size }).collect();
    let strategies = graph.nodes.iter();
    let strategies = strategies.map(|node| dice.of(&graph.declaration(node).strategies(sizes)));
    let mut plan = Plan { mesh, strategies: strategies.collect(), ..Plan::alone(graph) };
    let (stages, chunks) = match sizes.iter().product::<usize>() {
        8 => (1, 1),
        4 => dice.of(&[(1, 1), (2, 2), (2, 4)]),
        _ => dice.of(&[(1, 1), (2, 2), (2, 4), (4, 4)]),
    };
    let chunks = if chunks > graph.blocks.len() { stages } else { chunks };
    let stages = if stages > graph.blocks.len() { 1 } else { stages };
    let chunks = chunks.min(graph.blocks.len()).max(stages) / stages * stages;
    let orders = [Schedule::Gpipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubble];
    let order = dice.of(if chunks == stages { &orders } else { &orders[..2] });
    plan = plans::pipelined(plan, order, (stages, chunks, dice.of(&[1, 2]) * stages));
    let shardings =
        [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];
    plan.sharding.iter_mut().for_each(|sharding| *sharding = dice.of(&shardings));
    let blocks = plan.blocks.clone().into_iter();
    plan.blocks =
        blocks.map(|block| BlockPlan { recompute: dice.of(&[true, false]), ..block }).collect();
    let levels = dice.of(&[0, 1, 2]);
    plan.activations = (0..levels).map(|at| transport(dice.of(&CODECS), 1 << at)).collect();
    plan
}

fn holds(model: &Model, seed: u64) {
    let mut dice = Dice { key: Key { seed, step: 0, tensor: 0 }, thrown: 0 };
    let plan = plan(&model.graph, &mut dice);
    let what = format!(
        "seed {seed}: mesh {:?}, {} stages, {} micro-batches",
        plan.sizes(),
        plan.stages,
        plan.micro_batches
    );
    match plan.activations.iter().all(|transport| transport.codec.is_raw()) {
        true => model.equals_alone(&plan, &what),
        false => model.is_near_alone(&plan, &what),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn any_mixture_on_a_gpt_is_one_rank(seed: u64) {
        holds(&GPT, seed);
    }

    #[test]
    fn any_mixture_on_a_llama_is_one_rank(seed: u64) {
        holds(&LLAMA, seed);
    }

    #[test]
    fn any_mixture_on_experts_is_one_rank(seed: u64) {
        holds(&MOE, seed);
    }

    #[test]
    fn any_mixture_on_a_convolution_is_one_rank(seed: u64) {
        holds(&VGG, seed);
    }
}
