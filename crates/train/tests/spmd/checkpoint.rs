//! What ranks freeze in parts is the model that they have together, and the one that one rank has.

use std::collections::BTreeMap;
use std::path::Path;

use thinwire_collective::Group;
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Sharding};
use thinwire_testkit::{Network, spawn};
use thinwire_train::checkpoint::{
    Checkpoint, Draft, Progress, commit, write_exchange, write_shard,
};
use thinwire_train::spmd::{ExchangeOptions, Executor, initial};
use thinwire_train::{AdamWOptions, Pace, Parameter, Position};
use thinwire_wire::Rank;

use crate::codecs::transport;
use crate::laws::GPT;
use crate::plans;
use crate::ranks::data;

/// What a rank has of all parameters, by their names, if it has the whole of each.
type Whole = Option<BTreeMap<String, Vec<f32>>>;

fn step(executor: &mut Executor<'_>, micro_batch_number: u64, micro_batches: usize) {
    let inputs = vec![data(&GPT.graph, micro_batch_number); micro_batches];
    let pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };
    let options = AdamWOptions { epsilon: 1e-3, ..AdamWOptions::default() };
    executor.step(&inputs, pace, &options).unwrap();
}

/// The manifest of a checkpoint after two steps.
fn progress(plan: &Plan) -> Progress {
    Progress {
        step: 2,
        updates: 2,
        position: Position::default(),
        seed: 3,
        world: plan.ranks() as u32,
        data: String::new(),
        config: serde_json::json!({}),
        plan: String::new(),
    }
}

/// Trains for two steps and freezes; what the checkpoint has, and every rank.
fn frozen(plan: &Plan, folder: &Path) -> (Vec<Vec<f32>>, Vec<Whole>) {
    let start = initial(&GPT.graph, 3);
    let draft = Draft::create(folder, 2).unwrap();
    let ranks = spawn(Network::Mem, plan.ranks(), |link| {
        let group = Group::new(link);
        let rank = group.world().rank();
        let mut executor =
            Executor::new(&GPT.training, plan, group, &start, ExchangeOptions::default()).unwrap();
        for micro_batch_number in 0..2 {
            step(&mut executor, micro_batch_number, plan.micro_batches);
        }
        let whole = executor.whole().unwrap();
        executor.settle().unwrap();
        let draft = Draft::open(folder, 2, "").unwrap();
        write_shard(&draft, rank, &executor.shards()).unwrap();
        whole
    });
    let checkpoint = Checkpoint::open(&commit(&draft, progress(plan)).unwrap()).unwrap();
    assert!(checkpoint.exchange(Rank(0)).is_err(), "it is in parts");
    (checkpoint.values(&parameters()).unwrap(), ranks)
}

fn parameters() -> Vec<Parameter> {
    let described = GPT
        .graph
        .parameters()
        .map(|(_, tensor)| Parameter { name: tensor.name.clone(), shape: tensor.shape.clone() });
    described.collect()
}

#[test]
fn parts_are_the_whole_model() {
    let folder = std::env::temp_dir().join(format!("thinwire-frozen-{}", std::process::id()));
    let (expected, alone) = frozen(&Plan::alone(&GPT.graph), &folder);
    let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
    let data = plans::data(&GPT.graph, &[2]);
    let divided = |sharding| Plan { sharding: vec![sharding; data.sharding.len()], ..data.clone() };
    let mesh = plans::on_mesh(&GPT.graph, &[2, 2], letter);
    let staged = plans::pipelined(data.clone(), Schedule::Gpipe, (2, 2, 1));
    let mut all = vec![(expected.clone(), alone, true)];
    for (plan, is_whole) in [
        (data.clone(), true),
        (divided(Sharding::Gradients), true),
        (divided(Sharding::Parameters), false),
        (mesh, false),
        (staged, false),
    ] {
        let (values, ranks) = frozen(&plan, &folder);
        all.push((values, ranks, is_whole));
    }
    for (values, ranks, is_whole) in all {
        for (found, expected) in values.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-4, "{found}, alone {expected}");
        }
        for whole in ranks {
            assert_eq!(whole.is_some(), is_whole);
            let Some(whole) = whole else { continue };
            let places = parameters().into_iter().zip(&values);
            places.for_each(|(parameter, values)| assert_eq!(&whole[&parameter.name], values));
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A plan whose gradients are summed in every micro-batch, encoded.
fn summed_often() -> Plan {
    let halves = plans::data(&GPT.graph, &[2]);
    let sharding = vec![Sharding::Gradients; halves.sharding.len()];
    let plan = plans::pipelined(Plan { sharding, ..halves }, Schedule::Gpipe, (1, 1, 2));
    Plan { codecs: vec![transport("int4", 1); plan.codecs.len()], ..plan }
}

#[test]
fn residuals_of_micro_batches_go_on() {
    let folder = std::env::temp_dir().join(format!("thinwire-owed-{}", std::process::id()));
    let (plan, start) = (summed_often(), initial(&GPT.graph, 3));
    let executor = |link| {
        let (group, options) = (Group::new(link), ExchangeOptions::default());
        Executor::new(&GPT.training, &plan, group, &start, options).unwrap()
    };
    let draft = Draft::create(&folder, 2).unwrap();
    let whole = spawn(Network::Mem, 2, |link| {
        let (rank, mut executor) = (link.world().rank(), executor(link));
        (0..2).for_each(|micro_batch_number| {
            step(&mut executor, micro_batch_number, plan.micro_batches)
        });
        executor.settle().unwrap();
        let state = executor.exchange_state().tensors;
        assert!(state.keys().any(|name| name.starts_with("owed.")), "int4 owes something");
        let draft = Draft::open(&folder, 2, "").unwrap();
        write_shard(&draft, rank, &executor.shards()).unwrap();
        write_exchange(&draft, rank, &state).unwrap();
        (2..4).for_each(|micro_batch_number| {
            step(&mut executor, micro_batch_number, plan.micro_batches)
        });
        executor.settle().unwrap();
        executor.parameters()
    });
    let checkpoint = Checkpoint::open(&commit(&draft, progress(&plan)).unwrap()).unwrap();
    let resumed = spawn(Network::Mem, 2, |link| {
        let (rank, mut executor) = (link.world().rank(), executor(link));
        executor.restore(&checkpoint).unwrap();
        executor.restore_residuals(&checkpoint.exchange(rank).unwrap()).unwrap();
        (2..4).for_each(|micro_batch_number| {
            step(&mut executor, micro_batch_number, plan.micro_batches)
        });
        executor.settle().unwrap();
        executor.parameters()
    });
    assert!(whole == resumed);
    std::fs::remove_dir_all(folder).unwrap();
}
