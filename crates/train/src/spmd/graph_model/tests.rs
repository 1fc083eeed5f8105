//! Gradients and trainings equal those of PyTorch; dropout; refusals.

use super::*;
use crate::testing::{
    alone, assert_differences_agree, batch, executor, gradients, loss, start as initial, step,
};
use crate::{Config, Gradients, Windows};
use thinwire_testkit::{Network, spawn};

const TINY: Config = Config { context: 12, width: 16, layers: 2, heads: 2 };

fn model(name: &str, rows: usize, context: usize) -> GraphModel {
    let graph = thinwire_model::named(name, rows, context).unwrap();
    GraphModel::new(&graph, None).unwrap()
}

/// Golden values of PyTorch, from `testdata/gpt.py`.
#[derive(serde::Deserialize)]
struct Golden {
    losses: Vec<f32>,
    gradients: Vec<GoldenGradient>,
}

/// Norm of a parameter's gradient, and seven or eight of its elements at equal distances.
#[derive(serde::Deserialize)]
struct GoldenGradient {
    name: String,
    norm: f32,
    samples: Vec<f32>,
}

impl Golden {
    const ROWS: usize = 4;

    fn new() -> Golden {
        serde_json::from_str(include_str!("../../../testdata/gpt.json")).unwrap()
    }

    /// Returns the initial values of the script, by its formula, in the order of a model's parameters.
    fn start(&self, parameters: &[Parameter]) -> Vec<Vec<f32>> {
        let of = |parameter: &Parameter| {
            let index = self.gradients.iter().position(|one| one.name == parameter.name).unwrap();
            let level = f64::from(u8::from(parameter.name.ends_with("gain")));
            let value = |at: usize| {
                let place = (at * 7919 + index * 104_729) % 2003;
                (place as f64 / 2003.0 * 0.4 - 0.2 + level) as f32
            };
            (0..parameter.elements()).map(value).collect()
        };
        parameters.iter().map(of).collect()
    }

    fn batch(step: usize) -> Batch {
        let byte = |at: usize| (97 + (at * at * 31 + at * 7 + step * 11) % 26) as u8;
        Windows::new((0..Golden::ROWS * (TINY.context + 1)).map(byte).collect(), TINY.context)
            .into()
    }
}

#[test]
fn gradients_are_those_of_pytorch() {
    let golden = Golden::new();
    // As one micro-batch, and as two.
    for rows in [4, 2] {
        let derived = model(&TINY.name(), rows, TINY.context);
        let values = golden.start(derived.parameters());
        let (trained, found) = gradients(&derived, &values, &Golden::batch(0));
        let expected = golden.losses[0];
        assert!((trained - expected).abs() < 1e-5, "{trained}, not {expected}");
        assert!((loss(&derived, &values, &Golden::batch(0)) - trained).abs() < 1e-5);
        for (parameter, found) in derived.parameters().iter().zip(&found) {
            let name = &parameter.name;
            let golden = golden.gradients.iter().find(|one| one.name == *name).unwrap();
            let norm = found.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((norm - golden.norm).abs() < 1e-5, "{name}: {norm}, not {}", golden.norm);
            let samples = found.iter().step_by(found.len() / 7);
            for (found, expected) in samples.zip(&golden.samples) {
                assert!((found - expected).abs() < 1e-6, "{name}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn twenty_steps_are_those_of_pytorch() {
    let golden = Golden::new();
    let derived = model(&TINY.name(), Golden::ROWS, TINY.context);
    let values = golden.start(derived.parameters());
    let mut executor = alone(&derived, Some(&values), 3);
    for (at, expected) in golden.losses.iter().enumerate() {
        let loss = step(&derived, &mut executor, &Golden::batch(at));
        assert!((loss - expected).abs() < 1e-4, "step {at}: {loss}, not {expected}");
    }
}

#[test]
fn gradients_of_every_family_equal_differences() {
    let sizes = "layers=2,width=16,heads=2";
    for (name, tolerance) in [
        (format!("gpt:{sizes},vocabulary=256,positions=8"), 5e-3),
        (format!("bert:{sizes},vocabulary=256,positions=8"), 5e-3),
        (format!("llama:{sizes},key_heads=1,feed_forward=24,vocabulary=256,positions=8"), 5e-3),
    ] {
        let derived = model(&name, 2, 8);
        let values = initial(&derived, 4);
        assert_differences_agree(&derived, &values, &batch(2, 8, 6), tolerance);
    }
}

#[test]
fn a_shared_table_is_handed_over_once_and_last() {
    let derived = model("gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8", 2, 8);
    let names: Vec<&str> = derived.parameters().iter().map(|p| &p.name[..]).collect();
    assert_eq!(names[0], "head.norm.gain");
    assert_eq!(names.iter().filter(|name| **name == "embedding.token.weight").count(), 1);
    assert!(names[names.len() - 2..].contains(&"embedding.token.weight"), "{names:?}");
}

#[test]
#[should_panic(expected = "a batch of [3, 8], expected a multiple of 2 rows of 8 bytes")]
fn rows_that_make_no_micro_batches_are_a_mistake() {
    let derived = model("gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8", 2, 8);
    derived.micro_batches(&batch(3, 8, 1));
}

#[test]
fn a_seed_gives_one_start() {
    let derived = model("gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8", 2, 8);
    assert_eq!(initial(&derived, 4), initial(&derived, 4));
    assert_ne!(initial(&derived, 4), initial(&derived, 5));
}

#[test]
fn what_the_loss_does_not_depend_on_is_refused() {
    let name = "gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8";
    let mut graph = thinwire_model::named(name, 2, 8).unwrap();
    let (_, known) = graph.parameters().next().unwrap();
    let unread = thinwire_model::Tensor { name: "unread".to_owned(), ..known.clone() };
    graph.tensors.push(unread);
    let error = GraphModel::new(&graph, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "unread: the loss does not depend on it, expected only parameters on which the loss depends"
    );
}

/// Returns a GPT without dropout, and the same one with dropout.
fn dropping() -> [GraphModel; 2] {
    let gpt = thinwire_model::Gpt {
        layers: 1,
        hidden: 16,
        heads: 2,
        feed_forward: 32,
        vocabulary: 256,
        positions: 8,
        attention: thinwire_model::AttentionKind::Fused,
        dropout: 0.0,
    };
    let dropped = thinwire_model::Gpt { dropout: 0.5, ..gpt };
    [gpt, dropped].map(|gpt| GraphModel::new(&gpt.graph(2, 8).unwrap(), None).unwrap())
}

#[test]
fn training_drops_out_and_evaluation_does_not() {
    let [whole, dropped] = dropping();
    let (values, batch) = (initial(&dropped, 4), batch(2, 8, 1));
    let trained = gradients(&dropped, &values, &batch).0;
    assert_eq!(trained, gradients(&dropped, &values, &batch).0);
    assert_ne!(trained, loss(&dropped, &values, &batch));
    // The same values by name: parameters of another graph have other numbers.
    let of = |parameter: &Parameter| {
        let names = dropped.parameters().iter();
        let place = names.into_iter().position(|other| other.name == parameter.name).unwrap();
        values[place].clone()
    };
    let same: Vec<Vec<f32>> = whole.parameters().iter().map(of).collect();
    assert_eq!(loss(&dropped, &values, &batch), loss(&whole, &same, &batch));
}

#[test]
fn every_micro_batch_has_random_numbers_of_its_own() {
    let [_, dropped] = dropping();
    let (values, once) = (initial(&dropped, 4), batch(2, 8, 1));
    let Batch::Text(rows) = &once else { panic!("{once:?}") };
    let rows: Vec<u8> = rows.rows().flatten().copied().collect();
    let twice = Windows::new(rows.repeat(2), 8).into();
    assert_ne!(gradients(&dropped, &values, &twice).0, gradients(&dropped, &values, &once).0);
}

#[test]
fn every_rank_has_random_numbers_of_its_own() {
    let [whole, dropped] = dropping();
    // Ranks that drop out the same elements of the same batch have one loss.
    let loss = |model: &GraphModel, ranks: usize| {
        let losses = spawn(Network::Mem, ranks, |link| {
            let mut executor = executor(model, link, (None, 4), (1, Gradients::F32));
            step(model, &mut executor, &batch(2, 8, 1))
        });
        losses[0]
    };
    assert_eq!(loss(&whole, 1), loss(&whole, 2));
    assert_ne!(loss(&dropped, 1), loss(&dropped, 2));
}

#[test]
fn only_matrices_are_rounded_to_bf16() {
    let model = crate::testing::model(4);
    let link = thinwire_link::mem::alone();
    let mut executor = executor(&model, link, (None, 1), (1, Gradients::MixedBf16));
    step(&model, &mut executor, &batch(4, 8, 2));
    for (index, parameter) in model.parameters().iter().enumerate() {
        let gradient = executor.sync().gradient(index);
        let rounded = gradient.iter().all(|value| value.to_bits() & 0xffff == 0);
        assert_eq!(rounded, parameter.is_matrix(), "{}", parameter.name);
    }
}
