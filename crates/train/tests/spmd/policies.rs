//! Planned training whose gradients leave by a policy: every codec, feedback, momentum and `auto`, with the
//! bytes that were predicted.

use thinwire_collective::Group;
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Sharding};
use thinwire_sync::{Feedback, Momentum, Options};
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{Codecs, ExchangeOptions, Executor, initial};
use thinwire_train::{AdamWOptions, Gradients, Pace};

use crate::laws::GPT;
use crate::plans::{data, on_mesh, operator_letter, pipelined};
use crate::ranks::data as inputs;

const STEPS: u64 = 12;

/// What a rank ends with: the losses, its parts of parameters by tensor and place, and the bytes that it
/// sent and should have.
type Ended = (Vec<f64>, Vec<(usize, Vec<usize>, Vec<f64>)>, [u64; 2]);

fn options(policy: &str) -> Options {
    Options { policy: policy.parse().unwrap(), bucket_bytes: 16 << 10, ..Options::default() }
}

fn train(plan: &Plan, ranks: usize, sync: &Options) -> Vec<Ended> {
    let start = initial(&GPT.graph, 3);
    spawn(Network::Mem, ranks, |link| {
        let (codecs, gradients) = (Codecs::OfPolicy, Gradients::F32);
        let options =
            ExchangeOptions { sync: sync.clone(), codecs, gradients, ..ExchangeOptions::default() };
        let mut executor =
            Executor::new(&GPT.training, plan, Group::new(link), &start, options).unwrap();
        let adamw = AdamWOptions { epsilon: 1e-3, ..AdamWOptions::default() };
        let mut losses = Vec::new();
        for micro_batch_number in 0..STEPS {
            let batch = vec![inputs(&GPT.graph, micro_batch_number % 2); plan.micro_batches];
            let pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };
            executor.step(&batch, pace, &adamw).unwrap();
            losses.push(executor.agreed().loss);
        }
        executor.settle().unwrap();
        let parts = executor.parameters().into_iter();
        let parts = parts.map(|(tensor, start, part)| (tensor, start, part.values().to_vec()));
        (losses, parts.collect(), [executor.sent_bytes(), executor.predicted_bytes()])
    })
}

/// Plans whose gradients are summed once a step: over all ranks, in shards, beside a division of operators,
/// and on every stage.
fn plans() -> Vec<(&'static str, Plan)> {
    let gpt = &GPT.graph;
    let halves = data(gpt, &[2]);
    let sharding = vec![Sharding::Optimizer; halves.sharding.len()];
    let mixed = |name: &str, dim| if dim == 0 { 'b' } else { operator_letter(name) };
    vec![
        ("data 2", halves.clone()),
        ("sharded optimizer", Plan { sharding, ..halves.clone() }),
        ("data 2, operators 2", on_mesh(gpt, &[2, 2], mixed)),
        ("data 2x2", data(gpt, &[2, 2])),
        ("1f1b 2, data 2", pipelined(halves, Schedule::OneForwardOneBackward, (2, 2, 4))),
    ]
}

fn assert_sound(name: &str, all: &[Ended]) {
    for (losses, parts, [sent, predicted]) in all {
        assert_eq!(sent, predicted, "{name}: bytes");
        assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
        assert_eq!(losses, &all[0].0, "{name}: every rank knows the mean");
        for (tensor, start, values) in parts {
            for (other, place, same) in all.iter().flat_map(|(_, parts, _)| parts) {
                let alike = (other, place) != (tensor, start) || values == same;
                assert!(alike, "{name}: replicas of tensor {tensor} differ");
            }
        }
    }
}

#[test]
fn every_codec_carries_the_gradients_of_every_plan() {
    let fall = |all: &[Ended]| all[0].0[0] - all[0].0[STEPS as usize - 1];
    for (name, plan) in plans() {
        let raw = train(&plan, plan.ranks(), &options("none"));
        assert_sound(name, &raw);
        assert!(fall(&raw) > 0.1, "{name} learns: {:?}", raw[0].0);
        for policy in ["powersgd:4", "powersgd:2:alternate", "int8", "topk:0.05", "intsgd"] {
            let all = train(&plan, plan.ranks(), &options(policy));
            assert_sound(&format!("{name}, {policy}"), &all);
            assert!(fall(&all) > 0.5 * fall(&raw), "{name}, {policy}: {:?}", all[0].0);
        }
        let ef21 = Options { feedback: Feedback::Ef21, ..options("int4") };
        let momentum = Options { momentum: Some(Momentum::default()), ..options("topk:0.05") };
        let auto = options("auto:int8+int4");
        for (kind, sync) in [("ef21", ef21), ("momentum", momentum), ("auto", auto)] {
            assert_sound(&format!("{name}, {kind}"), &train(&plan, plan.ranks(), &sync));
        }
    }
}

#[test]
fn a_plan_of_the_batch_alone_is_what_replicas_are() {
    let (plan, alone) = (data(&GPT.graph, &[2]), Plan::alone(&GPT.graph));
    for policy in ["none", "int8"] {
        let (planned, one) =
            (train(&plan, 2, &options(policy)), train(&alone, 1, &options("none")));
        for (step, (a, b)) in planned[0].0.iter().zip(&one[0].0).enumerate() {
            let most = if policy == "none" { 1e-4 } else { 0.05 };
            assert!((a - b).abs() < most, "{policy}, step {step}: {a} and {b}");
        }
    }
}

#[test]
fn a_codec_that_cannot_carry_them_is_refused() {
    let halves = data(&GPT.graph, &[2]);
    let sharding = vec![Sharding::Gradients; halves.sharding.len()];
    let plan = Plan { sharding, ..halves };
    let start = initial(&GPT.graph, 3);
    let refusals = spawn(Network::Mem, 2, |link| {
        let options = ExchangeOptions {
            sync: options("int8"),
            codecs: Codecs::OfPolicy,
            gradients: Gradients::F32,
            ..ExchangeOptions::default()
        };
        let executor = Executor::new(&GPT.training, &plan, Group::new(link), &start, options);
        executor.unwrap_err().to_string()
    });
    for refusal in refusals {
        assert!(
            refusal.contains("codec int8 cannot be used with a plan that sums sharded gradients"),
            "{refusal}"
        );
    }
}
