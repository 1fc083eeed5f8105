//! Loss and parameters of some steps, under every sort of plan.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use thinwire_codec::Choice;
use thinwire_model::{Graph, Training, backward};
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Plan, Sharding, Transport, program};
use thinwire_wire::Rank;

use crate::models;
use crate::plans;
use crate::ranks::{Outcome, STEPS, assert_equal, train};

/// How far encoded activations may move a loss of about `ln 8` in these steps. It is wide, since a
/// token whose experts are nearly tied may go to others.
const NEAR: f32 = 0.2;

/// A model and what one rank comes to, by the micro-batches of a step.
pub struct Model {
    pub graph: Graph,
    pub training: Training,
    alone: Mutex<HashMap<usize, Arc<Outcome>>>,
}

impl Model {
    pub fn new(graph: Graph) -> Model {
        let training = backward(&graph).unwrap();
        Model { graph, training, alone: Mutex::default() }
    }

    fn alone(&self, micro_batches: usize) -> Arc<Outcome> {
        let mut known = self.alone.lock().unwrap();
        let one = || {
            let plan =
                plans::pipelined(Plan::alone(&self.graph), Schedule::Gpipe, (1, 1, micro_batches));
            Arc::new(train(&self.training, &plan, STEPS))
        };
        Arc::clone(known.entry(micro_batches).or_insert_with(one))
    }

    pub fn equals_alone(&self, plan: &Plan, what: &str) {
        let alone = self.alone(plan.micro_batches);
        assert_equal(&train(&self.training, plan, STEPS), &alone, what);
    }

    /// The same of a plan whose activations lose something: every loss is near.
    pub fn is_near_alone(&self, plan: &Plan, what: &str) {
        let alone = &self.alone(plan.micro_batches).losses;
        let losses = train(&self.training, plan, STEPS).losses;
        for (a, b) in losses.iter().zip(alone) {
            assert!((a - b).abs() < NEAR, "{what}: {losses:?}, alone {alone:?}");
        }
    }
}

pub static GPT: LazyLock<Model> = LazyLock::new(|| Model::new(models::gpt()));
pub static LLAMA: LazyLock<Model> = LazyLock::new(|| Model::new(models::llama()));
pub static MOE: LazyLock<Model> = LazyLock::new(|| Model::new(models::moe()));
pub static VGG: LazyLock<Model> = LazyLock::new(|| Model::new(models::vgg()));
pub static RESNET: LazyLock<Model> = LazyLock::new(|| Model::new(models::resnet()));

const ORDERS: [(&str, Schedule); 2] =
    [("gpipe", Schedule::Gpipe), ("1f1b", Schedule::OneForwardOneBackward)];
const SHARDINGS: [Sharding; 3] = [Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];

fn sharded(plan: Plan, sharding: Sharding) -> Plan {
    Plan { sharding: vec![sharding; plan.sharding.len()], ..plan }
}

fn recomputed(mut plan: Plan) -> Plan {
    plan.blocks.iter_mut().for_each(|block| block.recompute = true);
    plan
}

#[test]
fn one_rank_learns() {
    let losses = &GPT.alone(1).losses;
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
}

#[test]
fn data_parallel_is_one_rank() {
    for sizes in [&[1][..], &[2], &[4], &[2, 2]] {
        GPT.equals_alone(&plans::data(&GPT.graph, sizes), &format!("data on {sizes:?}"));
    }
}

#[test]
fn operator_parallel_is_one_rank() {
    for ranks in [2, 4] {
        let letter = |name: &str, _| plans::operator_letter(name);
        let plan = plans::on_mesh(&GPT.graph, &[ranks], letter);
        GPT.equals_alone(&plan, &format!("operators on {ranks}"));
    }
}

#[test]
fn sequence_parallel_is_one_rank() {
    for ranks in [2, 4] {
        let letter = |name: &str, _| plans::sequence_letter(name);
        let plan = plans::on_mesh(&GPT.graph, &[ranks], letter);
        GPT.equals_alone(&plan, &format!("sequence on {ranks}"));
        let all = plans::on_mesh(&GPT.graph, &[ranks], |_, _| 's');
        GPT.equals_alone(&all, &format!("only sequence on {ranks}"));
    }
}

#[test]
fn several_mesh_dimensions_are_one_rank() {
    for sizes in [[2, 2], [4, 2], [2, 4]] {
        let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::sequence_letter(name) };
        let plan = plans::on_mesh(&GPT.graph, &sizes, letter);
        GPT.equals_alone(&plan, &format!("data and operators on {sizes:?}"));
    }
}

#[test]
fn every_sharding_of_state_is_one_rank() {
    for sharding in SHARDINGS {
        for sizes in [&[2][..], &[4], &[2, 2]] {
            let letter =
                |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
            let plan = sharded(plans::on_mesh(&GPT.graph, sizes, letter), sharding);
            let plan = plans::pipelined(plan, Schedule::Gpipe, (1, 1, 2));
            GPT.equals_alone(&plan, &format!("{sharding:?} on {sizes:?}"));
        }
    }
}

#[test]
fn recomputation_changes_nothing() {
    for ranks in [1, 2] {
        let plan = recomputed(plans::data(&GPT.graph, &[ranks]));
        GPT.equals_alone(&plan, &format!("recomputed on {ranks}"));
    }
}

#[test]
fn every_pipeline_is_one_rank() {
    for (name, order) in ORDERS {
        for stages in [2, 4] {
            let plan = plans::pipelined(Plan::alone(&GPT.graph), order, (stages, stages, 4));
            GPT.equals_alone(&plan, &format!("{name} of {stages} stages"));
        }
        let plan = plans::pipelined(Plan::alone(&GPT.graph), order, (2, 4, 4));
        GPT.equals_alone(&plan, &format!("interleaved {name}"));
    }
    for stages in [2, 4] {
        let plan = plans::data(&GPT.graph, &[2]);
        let plan = sharded(plan, Sharding::Gradients);
        let plan = plans::pipelined(plan, Schedule::ZeroBubble, (stages, stages, 4));
        GPT.equals_alone(&plan, &format!("zero-bubble of {stages} stages"));
        let plan = plans::pipelined(recomputed(plan), Schedule::ZeroBubble, (stages, stages, 4));
        GPT.equals_alone(&plan, &format!("zero-bubble of {stages} stages, recomputed"));
    }
}

#[test]
fn stages_on_meshes_are_one_rank() {
    let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::sequence_letter(name) };
    for sharding in SHARDINGS {
        let plan = recomputed(sharded(plans::on_mesh(&GPT.graph, &[2, 2], letter), sharding));
        let plan = plans::pipelined(plan, Schedule::OneForwardOneBackward, (2, 4, 4));
        GPT.equals_alone(
            &plan,
            &format!("two stages of 2x2, interleaved, recomputed, {sharding:?}"),
        );
    }
}

#[test]
fn a_parameter_of_two_stages_is_one_parameter() {
    for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Parameters] {
        for sizes in [&[][..], &[2]] {
            let plan = sharded(plans::data(&GPT.graph, sizes), sharding);
            let plan = plans::pipelined(plan, Schedule::Gpipe, (2, 2, 2));
            GPT.equals_alone(&plan, &format!("{sharding:?}, two stages of {sizes:?}"));
        }
    }
}

#[test]
fn other_models_are_one_rank_too() {
    for (name, model) in [("llama", &LLAMA), ("moe", &MOE), ("vgg", &VGG), ("resnet", &RESNET)] {
        let data = plans::data(&model.graph, &[2]);
        model.equals_alone(&data, &format!("{name}, data"));
        let letter = |name: &str, dim| if dim == 0 { 'b' } else { plans::operator_letter(name) };
        let plan = plans::on_mesh(&model.graph, &[2, 2], letter);
        model.equals_alone(&sharded(plan, Sharding::Parameters), &format!("{name}, 2x2"));
        let plan = recomputed(plans::pipelined(data, Schedule::OneForwardOneBackward, (2, 2, 4)));
        model.equals_alone(&plan, &format!("{name}, two stages"));
    }
}

#[test]
fn experts_on_their_own_ranks_are_one_rank() {
    let letter = |name: &str, dim| {
        let of_experts = ["dispatch", "gate_up", "halves", "silu", "gated", "down", "combine"];
        match of_experts.iter().any(|end| name.ends_with(end)) {
            true if dim == 0 => 'e',
            _ => 'b',
        }
    };
    for sizes in [&[2][..], &[4], &[4, 2]] {
        let plan = plans::on_mesh(&MOE.graph, sizes, letter);
        MOE.equals_alone(&plan, &format!("experts on {sizes:?}"));
    }
}

/// The most elements that a rank's micro-batches hold.
fn elements(plan: &Plan) -> usize {
    train(&GPT.training, plan, 1).elements_max
}

#[test]
fn recomputation_holds_less() {
    let plan = plans::data(&GPT.graph, &[2]);
    let (kept, recomputed) = (elements(&plan), elements(&recomputed(plan)));
    assert!(2 * recomputed < kept, "{recomputed} of {kept}");
}

#[test]
fn one_forward_one_backward_holds_less_than_gpipe() {
    let held = |order| elements(&plans::pipelined(Plan::alone(&GPT.graph), order, (2, 2, 8)));
    let (all, few) = (held(Schedule::Gpipe), held(Schedule::OneForwardOneBackward));
    assert!(2 * few < all, "{few} of {all}");
}

#[test]
fn a_plan_for_another_graph_is_refused() {
    let refused = |plan: &Plan| program(&GPT.training, plan, Rank(0)).unwrap_err().to_string();
    let plan = || plans::data(&GPT.graph, &[2]);
    let blocks = GPT.graph.blocks.len();
    let error = refused(&Plan { blocks: Vec::new(), ..plan() });
    assert_eq!(error, format!("blocks of the plan: 0, expected {blocks}"));
    let mut uneven = plan();
    uneven.mesh[0].size = 3;
    let error = refused(&uneven);
    assert_eq!(error, "embedding.token cannot be cut as 'b' on mesh [3]");
    let mut stuck = plans::pipelined(plan(), Schedule::Gpipe, (2, 2, 2));
    stuck.orders[0].pop();
    assert_eq!(refused(&stuck), "orders run 7 of 7 passes, expected 8");
}

#[test]
fn gradients_travel_encoded() {
    let raw = plans::data(&GPT.graph, &[4]);
    let Choice::Bytes(half) = Choice::parse("bf16").unwrap() else { panic!("bf16 is bytes") };
    let encoded = Plan { codecs: vec![Transport::from(half); raw.codecs.len()], ..raw.clone() };
    let sent = |plan: &Plan| program(&GPT.training, plan, Rank(1)).unwrap().sent_bytes();
    assert!(5 * sent(&encoded) < 4 * sent(&raw), "{} of {}", sent(&encoded), sent(&raw));
    let (losses, alone) = (train(&GPT.training, &encoded, STEPS).losses, GPT.alone(1));
    let pairs = losses.iter().zip(&alone.losses);
    pairs.for_each(|(a, b)| assert!((a - b).abs() < 0.02, "{a}, alone {b}"));
}
