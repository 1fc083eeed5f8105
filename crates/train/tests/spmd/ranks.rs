//! Training under a plan on ranks that are threads, and what must be equal.

use std::collections::HashMap;

use thinwire_collective::Group;
use thinwire_model::{Array, Element, Graph, Initial, Part, Role, TensorId, Training};
use thinwire_program::Plan;
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{ExchangeOptions, Executor};
use thinwire_train::{AdamWOptions, Pace};
use thinwire_wire::random::Key;

use crate::models::CLASSES;

/// Enough for AdamW to have used the means of its first steps.
pub const STEPS: usize = 8;
/// Enough for losses to fall, and for what is owed to come back.
pub const MORE_STEPS: usize = 20;

/// What training came to.
pub struct Outcome {
    pub losses: Vec<f32>,
    pub parameters: Vec<Array>,
    /// The most elements that the first rank's micro-batches have held.
    pub elements_max: usize,
}

/// The values of all parameters before the first step.
pub fn initial(graph: &Graph) -> Vec<Array> {
    let start = |(id, tensor): (TensorId, &thinwire_model::Tensor)| {
        let key = Key { seed: 7, step: 0, tensor: id as u32 };
        let mut place = 0;
        Array::from_fn(&tensor.shape[..], |_| {
            place += 1;
            match tensor.role {
                Role::Parameter(Initial::Normal(deviation)) => {
                    10.0 * f64::from(key.normal(place)) * deviation
                }
                Role::Parameter(Initial::Ones) => 1.0,
                _ => 0.0,
            }
        })
    };
    graph.parameters().map(start).collect()
}

/// The inputs of one micro-batch.
pub fn data(graph: &Graph, micro_batch_number: u64) -> HashMap<TensorId, Array> {
    let inputs = graph.tensors.iter().enumerate().filter(|(_, tensor)| tensor.role == Role::Input);
    let fill = |(id, tensor): (TensorId, &thinwire_model::Tensor)| {
        let key = Key { seed: 8, step: micro_batch_number, tensor: id as u32 };
        let mut place = 0;
        let values = Array::from_fn(&tensor.shape[..], |_| {
            place += 1;
            match tensor.element {
                Element::Index if tensor.name == "positions" => place as f64 - 1.0,
                Element::Index => f64::from(key.below(place, CLASSES as u32)),
                Element::Float => f64::from(key.normal(place)),
            }
        });
        (id, values)
    };
    inputs.map(fill).collect()
}

/// Trains with one thread per rank.
///
/// # Panics
/// If ranks do not send what their programs say.
pub fn train(training: &Training, plan: &Plan, steps: usize) -> Outcome {
    let graph = &training.graph;
    let whole = initial(graph);
    let ids: Vec<TensorId> = graph.parameters().map(|(id, _)| id).collect();
    let start = |id: TensorId, parts: &[Part]| {
        let at = ids.iter().position(|known| *known == id).unwrap();
        whole[at].slice(parts).values().iter().map(|value| *value as f32).collect()
    };
    let results = spawn(Network::Mem, plan.ranks(), |link| {
        let mut executor =
            Executor::new(training, plan, Group::new(link), &start, ExchangeOptions::default())
                .unwrap();
        // So small that it always clips: every plan must find the same norm.
        executor = executor.with_gradient_norm_max(Some(0.05));
        let expected = executor.program().sent_bytes();
        let mut losses = Vec::new();
        for step in 0..steps {
            let count = plan.micro_batches;
            let batches: Vec<_> =
                (0..count).map(|at| data(graph, (step * count + at) as u64)).collect();
            // Some gradients are zero but for rounding, a key's bias's for one: with a small epsilon,
            // AdamW would make steps of that.
            let options = AdamWOptions { epsilon: 1e-3, ..AdamWOptions::default() };
            let pace = Pace { learning_rate: 0.003, gradient_scale: 1.0 };
            let stepped = executor.step(&batches, pace, &options).unwrap();
            losses.extend(stepped);
        }
        executor.settle().unwrap();
        let sent = executor.sent_bytes();
        assert_eq!(sent, expected * steps as u64, "bytes sent in {steps} steps");
        (losses, executor.parameters(), executor.elements_max())
    });
    let elements_max = results[0].2;
    let mut parameters: HashMap<TensorId, Array> = HashMap::new();
    for (id, starts, part) in results.iter().flat_map(|(_, parameters, _)| parameters) {
        let whole = &graph.tensors[*id].shape;
        let all = parameters.entry(*id).or_insert_with(|| Array::full(&whole[..], f64::NAN));
        Array::each_index(part.shape(), |at| {
            let place: Vec<usize> = at.iter().zip(starts).map(|(i, start)| i + start).collect();
            all.set(&place, part.at(at));
        });
    }
    let losses = results.iter().map(|(losses, ..)| losses).find(|losses| !losses.is_empty());
    let parameters = graph.parameters().map(|(id, _)| parameters[&id].clone()).collect();
    Outcome { losses: losses.unwrap().clone(), parameters, elements_max }
}

/// Loss within 1e-4 at each step, and parameters within 1e-4 of their norm in the end.
pub fn assert_equal(actual: &Outcome, expected: &Outcome, what: &str) {
    assert_eq!(actual.losses.len(), expected.losses.len(), "{what}");
    for (step, (a, b)) in actual.losses.iter().zip(&expected.losses).enumerate() {
        assert!((a - b).abs() <= 1e-4, "{what}: loss of step {step} is {a}, alone {b}");
    }
    for (index, (a, b)) in actual.parameters.iter().zip(&expected.parameters).enumerate() {
        let pairs = || a.values().iter().zip(b.values());
        let off: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let norm: f64 = pairs().map(|(_, b)| b.powi(2)).sum::<f64>().sqrt();
        assert!(off <= 1e-4 * norm.max(0.01), "{what}: parameter {index} is {off} off {norm}");
    }
}
