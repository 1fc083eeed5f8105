//! Activations that travel encoded: between stages and within them they teach nearly what raw ones
//! do, replicas stay equal, and what is no number is seen.

use std::collections::HashMap;
use std::sync::Arc;

use thinwire_codec::{Bound, Choice, Codec, Error, Exchange, Finite, Input, Write};
use thinwire_collective::Group;
use thinwire_model::{Collective, Element, Reduction, Role, TensorId, Training};
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Encoding, Instruction, Plan, Sharding, Transport, program};
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{ExchangeOptions, Executor, Inputs, initial};
use thinwire_train::{AdamWOptions, Pace};
use thinwire_wire::random::Key;
use thinwire_wire::{HEADER_BYTES, Rank, World};

use crate::codecs::{around, transport};
use crate::laws::{GPT, LLAMA, MOE, Model, VGG};
use crate::plans;
use crate::ranks::{MORE_STEPS, STEPS, data, train};

/// A codec, and how far a loss may come off. One encoding of numbers that scatter
/// normally loses about this much of their norm: at most 2⁻¹¹ by f16 and 2⁻⁸ by bf16, 0.7 % by int8,
/// twice that where it rounds at random, 3 % by e4m3. Logits are of the order of one, so what they
/// lose moves a loss by about as much; the errors of some ten encodings on the way to them, and back,
/// do not agree, and make three times that of one.
const CODECS: [(&str, f32); 5] =
    [("f16", 0.0015), ("bf16", 0.012), ("int8", 0.02), ("int8:stochastic", 0.04), ("e4m3", 0.1)];

fn encoded(plan: Plan, name: &str) -> Plan {
    Plan { activations: vec![transport(name, 1)], ..plan }
}

/// Plans in which activations travel: between stages, within them, and both.
fn plans(model: &Model) -> Vec<(&'static str, Plan)> {
    let graph = &model.graph;
    let operators = |name: &str, _| plans::operator_letter(name);
    let grid = |name: &str, dim| if dim == 0 { 'b' } else { plans::sequence_letter(name) };
    let stages = |plan, order: Schedule| plans::pipelined(plan, order, (2, 2, 4));
    let one_by_one = Schedule::OneForwardOneBackward;
    vec![
        ("stages", stages(plans::data(graph, &[2]), one_by_one)),
        ("operators", plans::on_mesh(graph, &[4], operators)),
        ("replicas sent on", stages(plans::on_mesh(graph, &[2], operators), Schedule::Gpipe)),
        ("sequences", plans::on_mesh(graph, &[2, 2], grid)),
        ("both", stages(plans::on_mesh(graph, &[2, 2], grid), Schedule::ZeroBubble)),
    ]
}

#[test]
fn every_codec_teaches_nearly_as_none_does() {
    for (what, plan) in plans(&GPT) {
        let raw = train(&GPT.training, &plan, STEPS).losses;
        for (name, bound) in CODECS {
            let losses = train(&GPT.training, &encoded(plan.clone(), name), STEPS).losses;
            for (a, b) in losses.iter().zip(&raw) {
                assert!((a - b).abs() < bound, "{what}, {name}: {losses:?}, raw {raw:?}");
            }
            assert!(losses != raw, "{what}: nothing travels by {name}");
        }
    }
}

#[test]
fn numbers_as_they_are_change_nothing() {
    for model in [&*GPT, &*MOE] {
        for (what, plan) in plans(model) {
            model.equals_alone(&encoded(plan, "none"), what);
        }
    }
}

#[test]
fn units_of_neighbours_exchange_as_it_is() {
    for (what, plan) in plans(&GPT) {
        let ranks = plan.ranks();
        let within = |within| Plan { activations: vec![transport("int8", within)], ..plan.clone() };
        let sent = |plan: &Plan| -> u64 {
            let ranks = (0..ranks as u32).map(Rank);
            ranks.map(|rank| program(&GPT.training, plan, rank).unwrap().sent_bytes()).sum()
        };
        let [all, outer, none, raw] = [&within(1), &within(2), &within(ranks), &plan].map(sent);
        assert!(all < outer && outer < raw && none == raw, "{what}: {all} {outer} {none} {raw}");
        let losses = train(&GPT.training, &within(2), MORE_STEPS).losses;
        assert!(losses[MORE_STEPS - 1] < losses[0], "{what}: {losses:?}");
    }
}

#[test]
fn messages_are_as_long_as_their_codec_says() {
    let plan = plans::pipelined(plans::data(&GPT.graph, &[2]), Schedule::Gpipe, (2, 2, 2));
    let program = program(&GPT.training, &encoded(plan, "int8"), Rank(0)).unwrap();
    let codec = transport("int8", 1).codec;
    let sent = program.forward.iter().flatten().filter_map(|instruction| match instruction {
        Instruction::Send { slot, to, .. } => Some((*slot, *to)),
        _ => None,
    });
    let sent: Vec<_> = sent.collect();
    assert!(!sent.is_empty());
    for (slot, to) in sent {
        let held = &program.slots[slot];
        assert!(held.encodes, "{held:?}");
        assert_eq!(program.message_codec(slot, to).to_string(), codec.to_string());
    }
}

/// Parts of parameters, by tensor and by where they begin.
type Parts = HashMap<(TensorId, Vec<usize>), Vec<f64>>;

/// What every rank has after some steps.
fn trained(training: &Training, plan: &Plan) -> Vec<Parts> {
    let start = initial(&training.graph, 3);
    spawn(Network::Mem, plan.ranks(), |link| {
        let mut executor =
            Executor::new(training, plan, Group::new(link), &start, ExchangeOptions::default())
                .unwrap();
        for step in 0..3 {
            let pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };
            let inputs =
                (0..plan.micro_batches).map(|at| data(&training.graph, 10 * step + at as u64));
            executor.step(&inputs.collect::<Vec<_>>(), pace, &AdamWOptions::default()).unwrap();
        }
        executor.settle().unwrap();
        let parts = executor.parameters().into_iter();
        parts.map(|(id, start, part)| ((id, start), part.values().to_vec())).collect()
    })
}

/// Whether ranks that have the same part of a parameter have the same bits.
fn replicas_are_equal(training: &Training, plan: &Plan, what: &str) {
    let mut known = HashMap::new();
    for (rank, parts) in trained(training, plan).into_iter().enumerate() {
        for (place, values) in parts {
            let first = known.entry(place.clone()).or_insert_with(|| values.clone());
            let equal = *first == values;
            assert!(equal, "{what}: rank {rank} has other values of {place:?}");
        }
    }
}

#[test]
fn replicas_stay_equal() {
    for (what, plan) in plans(&GPT) {
        for (name, _) in CODECS {
            replicas_are_equal(
                &GPT.training,
                &encoded(plan.clone(), name),
                &format!("{what}, {name}"),
            );
        }
    }
}

#[test]
fn replicas_stay_equal_where_units_lie_unevenly() {
    // Of the groups along the first dimension one lies within four neighbours, the others do not.
    let letter = |_: &str, dim| if dim == 0 { 'b' } else { '-' };
    let plan = plans::on_mesh(&GPT.graph, &[2, 3], letter);
    let gradients = Plan { codecs: vec![transport("int8", 4); plan.codecs.len()], ..plan.clone() };
    replicas_are_equal(&GPT.training, &gradients, "gradients");
    let letter = |name: &str, dim| if dim == 0 { plans::operator_letter(name) } else { '-' };
    let plan = plans::on_mesh(&GPT.graph, &[2, 3], letter);
    let activations = Plan { activations: vec![transport("int8", 4)], ..plan };
    replicas_are_equal(&GPT.training, &activations, "activations");
}

/// Numbers as they are, but for those that it says it cannot hold: it hides them as zeros.
#[derive(Debug)]
struct Shy;

impl std::fmt::Display for Shy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("shy")
    }
}

impl Codec for Shy {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        false
    }

    fn bound(&self, _: usize) -> Bound {
        Bound::None
    }

    fn encoded_len(&self, elements: usize) -> usize {
        4 * elements
    }

    fn encode(&self, input: Input<'_>, _: Key, output: &mut [u8]) -> Finite {
        let mut finite = true;
        for (value, bytes) in input.values().iter().zip(output.chunks_exact_mut(4)) {
            let held = value.abs() < 1e4;
            finite &= held;
            bytes.copy_from_slice(&if held { *value } else { 0.0 }.to_le_bytes());
        }
        Finite::from(finite)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        for (value, bytes) in values.iter_mut().zip(encoded.chunks_exact(4)) {
            let held = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            *value = if write == Write::Add { *value + held } else { held };
        }
        Ok(())
    }
}

#[test]
fn a_step_in_which_a_codec_hides_something_is_left_out() {
    let input = |(id, tensor): (TensorId, &thinwire_model::Tensor)| {
        (tensor.role == Role::Input && tensor.element == Element::Float).then_some(id)
    };
    let images = VGG.graph.tensors.iter().enumerate().find_map(input).unwrap();
    // So large that nothing else notices, and nothing but the codec minds.
    let spoil = |inputs: &mut Inputs| inputs.get_mut(&images).unwrap().values_mut()[0] = 1e9;
    let letter = |name: &str, _| plans::operator_letter(name);
    let staged = plans::pipelined(plans::data(&VGG.graph, &[2]), Schedule::Gpipe, (2, 2, 2));
    for plan in [staged, plans::on_mesh(&VGG.graph, &[2], letter)] {
        let shy = Transport { codec: Arc::new(Shy), within: 1 };
        for (transport, counts) in [(shy, false), (Transport::raw(), true)] {
            let what = transport.codec.to_string();
            let plan = Plan { activations: vec![transport], ..plan.clone() };
            for states in around(&VGG.training, &plan, None, spoil) {
                let [before, after, later] = states;
                assert_eq!(before != after, counts && !after.is_empty(), "{what}");
                assert!(after != later || after.is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn what_is_lost_of_activations_is_not_owed() {
    for (what, plan) in plans(&GPT) {
        let plan = encoded(plan, "int8");
        let owed = program(&GPT.training, &plan, Rank(0)).unwrap().owed();
        assert!(owed.is_empty(), "{what}: {owed:?}");
    }
}

#[test]
fn sums_alone_are_encoded_of_what_is_reduced() {
    let Choice::Bytes(int8) = Choice::parse("int8").unwrap() else { panic!("bytes") };
    let world = World::new(1, 4).unwrap();
    let sent = |collective, codec: &Arc<dyn Codec>| {
        let encoding = Encoding { codec: Arc::clone(codec), inner: 1, activation: true };
        encoding.transfer(collective, &[32, 64], world).sent_bytes()
    };
    let raw = thinwire_codec::raw();
    for reduction in [Reduction::Max, Reduction::LogSumExp] {
        for collective in
            [Collective::AllReduce { reduction }, Collective::ReduceScatter { reduction, dim: 1 }]
        {
            assert_eq!(sent(collective, &int8), sent(collective, &raw), "{collective:?}");
        }
    }
    let part = |elements| (int8.encoded_len(elements) + HEADER_BYTES) as u64;
    let sum = Reduction::Sum;
    for (collective, expected) in [
        (Collective::AllGather { dim: 0 }, 3 * part(2048)),
        (Collective::AllToAll { from: 0, to: 1 }, 3 * part(512)),
        (Collective::ReduceScatter { reduction: sum, dim: 0 }, 3 * part(512)),
        (Collective::AllReduce { reduction: sum }, 6 * part(512)),
    ] {
        assert_eq!(sent(collective, &int8), expected, "{collective:?}");
    }
}

#[test]
fn parameters_and_their_gradients_travel_as_they_are() {
    for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters]
    {
        let plan = plans::data(&LLAMA.graph, &[4]);
        let plan = Plan { sharding: vec![sharding; plan.sharding.len()], ..plan };
        let sent = |plan: &Plan| program(&LLAMA.training, plan, Rank(1)).unwrap().sent_bytes();
        assert_eq!(sent(&encoded(plan.clone(), "int8")), sent(&plan), "{sharding:?}");
        // A parameter of two stages, whose gradients go from one to the other.
        let plan = plans::pipelined(plan, Schedule::Gpipe, (2, 2, 2));
        let program = program(&LLAMA.training, &encoded(plan, "int8"), Rank(1)).unwrap();
        for parameter in &program.parameters {
            let slots = [parameter.home, parameter.sum, parameter.reduced];
            assert!(slots.iter().all(|slot| !program.slots[*slot].encodes));
        }
    }
}
