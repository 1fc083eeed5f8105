//! Gradients that travel encoded: under any sharding they teach nearly as raw ones do, nothing that
//! is owed gets lost, and a step that is left out changes nothing.

use thinwire_codec::Choice;
use thinwire_collective::Group;
use thinwire_model::{Element, Role, Training};
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Program, Sharding, Transport, program};
use thinwire_testkit::{Network, spawn};
use thinwire_train::checkpoint::Tensors;
use thinwire_train::spmd::{ExchangeOptions, Executor, Inputs, initial};
use thinwire_train::{AdamWOptions, Pace};
use thinwire_wire::Rank;

use crate::laws::{GPT, VGG};
use crate::plans;
use crate::ranks::{MORE_STEPS, STEPS, data, train};

pub fn transport(name: &str, within: usize) -> Transport {
    let Choice::Bytes(codec) = Choice::parse(name).unwrap() else { panic!("{name} is bytes") };
    Transport { codec, within }
}

/// Matrices travel encoded, as planners have it.
fn encoded(training: &Training, plan: Plan, transport: &Transport) -> Plan {
    let parameters = training.graph.parameters();
    let codecs = parameters.map(|(_, tensor)| match tensor.shape.len() {
        0 | 1 => Transport::raw(),
        _ => transport.clone(),
    });
    Plan { codecs: codecs.collect(), ..plan }
}

fn sharded(plan: Plan, sharding: Sharding) -> Plan {
    Plan { sharding: vec![sharding; plan.sharding.len()], ..plan }
}

const SHARDINGS: [Sharding; 4] =
    [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];

#[test]
fn every_codec_teaches_nearly_as_none_does() {
    let alone = train(&GPT.training, &plans::data(&GPT.graph, &[4]), MORE_STEPS).losses;
    for (name, bound) in [
        ("int8", 0.01),
        ("int8:stochastic", 0.02),
        ("int4", 0.05),
        ("int3", 0.1),
        ("onebit", 0.15),
        ("topk:0.1", 0.15),
        ("e4m3", 0.05),
        ("vote", 1.0),
    ] {
        for sharding in [Sharding::None, Sharding::Optimizer] {
            let plan = sharded(plans::data(&GPT.graph, &[4]), sharding);
            let plan = encoded(&GPT.training, plan, &transport(name, 1));
            let losses = train(&GPT.training, &plan, MORE_STEPS).losses;
            for (a, b) in losses.iter().zip(&alone) {
                assert!((a - b).abs() < bound, "{name}, {sharding:?}: {losses:?}, raw {alone:?}");
            }
        }
    }
}

#[test]
fn every_plan_takes_codecs() {
    let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
    for sharding in SHARDINGS {
        let meshes: [(&[usize], &[usize]); 4] =
            [(&[2], &[1]), (&[4], &[2]), (&[2, 2], &[1, 2]), (&[4, 2], &[4])];
        for (sizes, units) in meshes {
            let plan = sharded(plans::on_mesh(&GPT.graph, sizes, letter), sharding);
            let plan = plans::pipelined(plan, Schedule::Gpipe, (1, 1, 2));
            let raw = train(&GPT.training, &plan, STEPS).losses;
            for within in units {
                let plan = encoded(&GPT.training, plan.clone(), &transport("int8", *within));
                let losses = train(&GPT.training, &plan, STEPS).losses;
                for (a, b) in losses.iter().zip(&raw) {
                    let what = format!("{sharding:?} on {sizes:?} within {within}");
                    assert!((a - b).abs() < 0.02, "{what}: {losses:?}, raw {raw:?}");
                }
            }
        }
    }
    let plan = sharded(plans::data(&GPT.graph, &[2]), Sharding::Gradients);
    let plan = plans::pipelined(plan, Schedule::ZeroBubble, (2, 2, 4));
    let plan = encoded(&GPT.training, plan, &transport("int4", 1));
    let losses = train(&GPT.training, &plan, MORE_STEPS).losses;
    assert!(losses[MORE_STEPS - 1] < losses[0], "{losses:?}");
}

#[test]
fn units_lose_nothing_where_nothing_is_encoded() {
    for sharding in SHARDINGS {
        for (model, sizes) in [(&VGG, &[4][..]), (&GPT, &[4, 2])] {
            let plan = sharded(plans::data(&model.graph, sizes), sharding);
            let codecs = vec![transport("none", 2); plan.codecs.len()];
            model.equals_alone(&Plan { codecs, ..plan }, &format!("units, {sharding:?}"));
        }
    }
}

#[test]
fn units_of_neighbours_send_little_to_others() {
    let plan = plans::data(&GPT.graph, &[4]);
    let sent = |within| {
        let plan = encoded(&GPT.training, plan.clone(), &transport("int8", within));
        program(&GPT.training, &plan, Rank(1)).unwrap().sent_bytes()
    };
    let raw = program(&GPT.training, &plan, Rank(1)).unwrap().sent_bytes();
    assert!(sent(1) < sent(2) && sent(2) < raw, "{} {} {raw}", sent(1), sent(2));
    assert_eq!(sent(4), raw);
}

#[test]
fn raw_bytes_are_those_of_f32() {
    let plan = plans::data(&GPT.graph, &[4]);
    let of = |plan: &Plan, bytes: fn(&Program) -> u64| -> u64 {
        let programs = (0..4).map(|rank| program(&GPT.training, plan, Rank(rank)).unwrap());
        programs.map(|program| bytes(&program)).sum()
    };
    let raw = of(&plan, Program::raw_bytes);
    assert_eq!(raw, of(&plan, Program::sent_bytes));
    for within in [1, 2] {
        let plan = encoded(&GPT.training, plan.clone(), &transport("int8", within));
        let (would, sent) = (of(&plan, Program::raw_bytes), of(&plan, Program::sent_bytes));
        // As many elements; within a unit an owner's sums continue in more messages.
        assert!(
            sent < would && would <= raw + raw / 8,
            "within {within}: {sent} of {would}, raw {raw}"
        );
    }
}

/// The state of all ranks before and after a step on these inputs.
pub fn around(
    training: &Training,
    plan: &Plan,
    clip: Option<f32>,
    spoil: impl Fn(&mut Inputs) + Sync,
) -> Vec<[Tensors; 3]> {
    let start = initial(&training.graph, 3);
    spawn(Network::Mem, plan.ranks(), |link| {
        let mut executor =
            Executor::new(training, plan, Group::new(link), &start, ExchangeOptions::default())
                .unwrap();
        executor = executor.with_gradient_norm_max(clip);
        let mut states = Vec::new();
        for micro_batch_number in 0..3 {
            let mut inputs = data(&training.graph, micro_batch_number);
            if micro_batch_number == 1 {
                spoil(&mut inputs);
            }
            let pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };
            let inputs = vec![inputs; plan.micro_batches];
            executor.step(&inputs, pace, &AdamWOptions::default()).unwrap();
            executor.settle().unwrap();
            let mut state = executor.shards();
            let exchange = executor.exchange_state().tensors.into_iter();
            state.extend(exchange.map(|(name, values)| {
                (format!("owed.{}", name.trim_start_matches("owed.")), values)
            }));
            states.push(state);
        }
        states.try_into().unwrap()
    })
}

#[test]
fn a_step_that_is_left_out_changes_nothing() {
    let input = |(id, tensor): (usize, &thinwire_model::Tensor)| {
        (tensor.role == Role::Input && tensor.element == Element::Float).then_some(id)
    };
    let images = VGG.graph.tensors.iter().enumerate().find_map(input).unwrap();
    for sharding in SHARDINGS {
        for name in ["int8", "topk:0.1", "int8:stochastic"] {
            let plan = sharded(plans::data(&VGG.graph, &[2]), sharding);
            let plan = plans::pipelined(plan, Schedule::Gpipe, (1, 1, 2));
            let plan = encoded(&VGG.training, plan, &transport(name, 1));
            for clip in [None, Some(1.0)] {
                let spoil = |inputs: &mut Inputs| {
                    // One number, of which one rank knows.
                    inputs.get_mut(&images).unwrap().values_mut()[0] = f64::NAN;
                };
                for (rank, states) in
                    around(&VGG.training, &plan, clip, spoil).into_iter().enumerate()
                {
                    let [before, after, later] = states;
                    let owes = before.keys().any(|name| name.starts_with("owed."));
                    assert_eq!(owes, name != "int8:stochastic", "{name}, {sharding:?}");
                    assert!(before == after, "{name}, {sharding:?}, rank {rank}");
                    let learns = after != later || after.is_empty();
                    assert!(learns, "{name}, {sharding:?}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn what_is_lost_is_owed() {
    // Nothing is sent at all but one element in a hundred, so what is owed grows step by step.
    let plan = plans::data(&GPT.graph, &[2]);
    let plan = encoded(&GPT.training, plan, &transport("topk:0.01", 1));
    let norm = |state: &Tensors| -> f64 {
        let owed = state.iter().filter(|(name, _)| name.starts_with("owed."));
        let values = owed.flat_map(|(_, (_, values))| values);
        values.map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
    };
    for [first, second, third] in around(&GPT.training, &plan, None, |_| {}) {
        assert!(norm(&first) > 0.0 && norm(&second) > norm(&first), "{}", norm(&first));
        assert!(norm(&third) > norm(&second));
    }
}

#[test]
fn replicas_stay_equal() {
    // Each on its own would draw other random numbers, and ranks would drift apart.
    let plan = plans::data(&GPT.graph, &[2, 2]);
    let plan = encoded(&GPT.training, plan, &transport("int8:stochastic", 1));
    let start = initial(&GPT.graph, 3);
    let all = spawn(Network::Mem, 4, |link| {
        let mut executor = Executor::new(
            &GPT.training,
            &plan,
            Group::new(link),
            &start,
            ExchangeOptions::default(),
        )
        .unwrap();
        for micro_batch_number in 0..3 {
            let pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };
            let inputs = [data(&GPT.graph, micro_batch_number)];
            executor.step(&inputs, pace, &AdamWOptions::default()).unwrap();
        }
        executor.settle().unwrap();
        executor.parameters()
    });
    for other in &all[1..] {
        assert!(all[0] == *other);
    }
}
