//! Plans by hand, as people make them.

use thinwire_model::{Cut, Declaration, Graph, Strategy};
use thinwire_program::pipeline::{Kind, Pass, Schedule};
use thinwire_program::{MeshDim, Plan};

/// A plan for one stage on a mesh; `letter` says for every node and dimension of the mesh which
/// axis is cut, and where an axis is not there or cannot be cut, nothing is.
pub fn on_mesh(graph: &Graph, sizes: &[usize], letter: impl Fn(&str, usize) -> char) -> Plan {
    let mesh = sizes.iter().enumerate();
    let mesh = mesh.map(|(at, size)| MeshDim { name: format!("m{at}"), size: *size }).collect();
    let strategies = graph.nodes.iter().map(|node| {
        let declaration = graph.declaration(node);
        strategy(&declaration, sizes, |dim| letter(&node.name, dim))
    });
    Plan { mesh, strategies: strategies.collect(), ..Plan::alone(graph) }
}

fn strategy(
    declaration: &Declaration,
    sizes: &[usize],
    letter: impl Fn(usize) -> char,
) -> Strategy {
    let mut strategy = Strategy(Vec::new());
    for dim in 0..sizes.len() {
        let cut = declaration.axis(letter(dim)).map_or(Cut::Whole, Cut::Axis);
        strategy.0.push(cut);
        if !declaration.allows(&strategy, sizes) {
            strategy.0[dim] = Cut::Whole;
        }
    }
    strategy
}

/// The batch on every dimension of the mesh.
pub fn data(graph: &Graph, sizes: &[usize]) -> Plan {
    on_mesh(graph, sizes, |_, _| 'b')
}

/// Megatron's cuts of attention and feed-forward; of a convolution, its channels.
pub fn operator_letter(name: &str) -> char {
    let ends = |parts: &[&str]| parts.iter().any(|part| name.ends_with(part));
    match name {
        _ if ends(&["embedding.token", "head.logits", "cross_entropy"]) => 'v',
        _ if ends(&["qkv", "heads", "up", "gelu", "linear.0", "relu.0"]) => 'n',
        _ if ends(&["attention.attention"]) => 'g',
        _ if ends(&["projection", "down", "classifier.logits"]) => 'k',
        _ if ends(&["conv", "window"]) => 'o',
        _ => '-',
    }
}

/// The same with everything between them cut along the sequence.
pub fn sequence_letter(name: &str) -> char {
    match operator_letter(name) {
        '-' => 's',
        letter => letter,
    }
}

/// The orders of a schedule, with several chunks a stage where there are more chunks than stages.
pub fn orders(
    schedule: Schedule,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
) -> Vec<Vec<Pass>> {
    let schedule = match (schedule, chunks / stages) {
        (Schedule::Gpipe, 2..) => {
            let gpipe = |stage| gpipe(stage, stages, chunks, micro_batches);
            return (0..stages).map(gpipe).collect();
        }
        (Schedule::OneForwardOneBackward, chunks @ 2..) => Schedule::Interleaved { chunks },
        (schedule, _) => schedule,
    };
    schedule.orders(stages, micro_batches).expect("a possible schedule")
}

/// All forwards, then all backwards, of a stage with several chunks.
fn gpipe(stage: usize, stages: usize, chunks: usize, micro_batches: usize) -> Vec<Pass> {
    let mine = || (stage..chunks).step_by(stages);
    let passes =
        |kind, chunk| (0..micro_batches).map(move |micro_batch| Pass { kind, chunk, micro_batch });
    let forward = mine().flat_map(|chunk| passes(Kind::Forward, chunk));
    let backward = mine().rev().flat_map(|chunk| passes(Kind::Backward, chunk));
    forward.chain(backward).collect()
}

/// The plan with its blocks spread evenly over a pipeline.
pub fn pipelined(
    mut plan: Plan,
    schedule: Schedule,
    (stages, chunks, micro_batches): (usize, usize, usize),
) -> Plan {
    let count = plan.blocks.len();
    for (at, block) in plan.blocks.iter_mut().enumerate() {
        block.chunk = at * chunks / count;
    }
    let orders = orders(schedule, stages, chunks, micro_batches);
    Plan { stages, micro_batches, orders, ..plan }
}
