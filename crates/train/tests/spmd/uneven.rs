//! Parts of the batch that do unequal work, and forward alone: both are what one rank does.

use thinwire_collective::Group;
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Sharding, Share, program};
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{ExchangeOptions, Executor, initial};
use thinwire_wire::Rank;

use crate::laws::{GPT, LLAMA, Model};
use crate::plans;
use crate::ranks::data;

/// The plan with so many micro-batches for every part of the batch.
fn shared(plan: Plan, order: Schedule, stages: usize, counts: &[usize]) -> Plan {
    let each = counts.iter().sum::<usize>() / counts.len();
    let plan = plans::pipelined(plan, order, (stages, stages, each));
    let share = |count: &usize| Share {
        micro_batches: *count,
        orders: plans::orders(order, stages, stages, *count),
    };
    Plan { shares: counts.iter().map(share).collect(), ..plan }
}

#[test]
fn uneven_shares_are_one_rank() {
    let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
    for model in [&GPT, &LLAMA] {
        for (sizes, counts) in [(&[2][..], &[3, 1][..]), (&[4], &[1, 4, 2, 1]), (&[2, 2], &[1, 3])]
        {
            let plan = plans::on_mesh(&model.graph, sizes, letter);
            for sharding in [Sharding::None, Sharding::Optimizer] {
                let sharding = vec![sharding; plan.sharding.len()];
                let plan = Plan { sharding, ..plan.clone() };
                let plan = shared(plan, Schedule::Gpipe, 1, counts);
                model.equals_alone(&plan, &format!("{sizes:?}, shares {counts:?}"));
            }
        }
    }
    for order in [Schedule::OneForwardOneBackward, Schedule::ZeroBubble] {
        let plan = shared(plans::data(&GPT.graph, &[2]), order, 2, &[5, 3]);
        GPT.equals_alone(&plan, "two stages, shares 5 and 3");
    }
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let refused = |plan: &Plan| program(&GPT.training, plan, Rank(0)).unwrap_err().to_string();
    let plan = shared(plans::data(&GPT.graph, &[2]), Schedule::Gpipe, 1, &[3, 1]);
    let mut short = plan.clone();
    short.shares.pop();
    let expected = "parts of the mesh have [3] micro-batches, expected 4 in 2 parts, and at least \
        one in each";
    assert_eq!(refused(&short), expected);
    let plan = shared(plans::data(&GPT.graph, &[2]), Schedule::Gpipe, 1, &[4, 0]);
    assert!(refused(&plan).contains("[4, 0]"), "{}", refused(&plan));
    let letter = |name: &str, _| plans::operator_letter(name);
    let plan = shared(plans::on_mesh(&GPT.graph, &[2], letter), Schedule::Gpipe, 1, &[3, 1]);
    let expected = "expected the first dimension to cut batches alone";
    assert!(refused(&plan).ends_with(expected), "{}", refused(&plan));
    let sharded = vec![Sharding::Parameters; plan.sharding.len()];
    let plan = shared(plans::data(&GPT.graph, &[2]), Schedule::Gpipe, 1, &[3, 1]);
    let plan = Plan { sharding: sharded, ..plan };
    assert!(refused(&plan).contains("do unequal work"), "{}", refused(&plan));
}

/// The loss of forward alone before training and after a step, and the bytes that were counted.
fn evaluated(model: &Model, plan: &Plan) -> [f32; 2] {
    let start = initial(&model.graph, 3);
    let found = spawn(Network::Mem, plan.ranks(), |link| {
        let mut executor = Executor::new(
            &model.training,
            plan,
            Group::new(link),
            &start,
            ExchangeOptions::default(),
        )
        .unwrap();
        let count = plan.micro_batches as u64;
        let inputs: Vec<_> = (0..count).map(|at| data(&model.graph, at)).collect();
        let held_out: Vec<_> = (0..count).map(|at| data(&model.graph, 100 + at)).collect();
        let first = executor.evaluate(&held_out).unwrap();
        let pace = thinwire_train::Pace { learning_rate: 0.01, gradient_scale: 1.0 };
        let options = thinwire_train::AdamWOptions { epsilon: 1e-3, ..Default::default() };
        executor.step(&inputs, pace, &options).unwrap();
        let second = executor.evaluate(&held_out).unwrap();
        executor.settle().unwrap();
        assert_eq!(executor.sent_bytes(), executor.program().sent_bytes(), "evaluation counts");
        [first as f32, second as f32]
    });
    assert!(found.iter().all(|losses| *losses == found[0]), "all ranks know");
    found[0]
}

#[test]
fn forward_alone_is_one_rank() {
    let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
    let alone = plans::pipelined(Plan::alone(&GPT.graph), Schedule::Gpipe, (1, 1, 2));
    let expected = evaluated(&GPT, &alone);
    assert!(expected[0] != expected[1]);
    let mesh = plans::on_mesh(&GPT.graph, &[2, 2], letter);
    let sharded =
        Plan { sharding: vec![Sharding::Parameters; mesh.sharding.len()], ..mesh.clone() };
    let one_forward = Schedule::OneForwardOneBackward;
    for plan in [
        plans::pipelined(mesh.clone(), Schedule::Gpipe, (1, 1, 2)),
        plans::pipelined(sharded, Schedule::Gpipe, (1, 1, 2)),
        plans::pipelined(Plan::alone(&GPT.graph), one_forward, (2, 4, 2)),
        plans::pipelined(mesh, one_forward, (2, 2, 2)),
        shared(plans::data(&GPT.graph, &[2]), Schedule::Gpipe, 1, &[3, 1]),
    ] {
        let found = evaluated(&GPT, &plan);
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4, "{found:?}, alone {expected:?}");
        }
    }
}
