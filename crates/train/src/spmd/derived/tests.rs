//! What is derived is what the reference does: one batch, and trainings.

use super::*;
use crate::testing::{assert_differences_agree, batch, gradients, options};
use crate::{Alone, Config, Trainer};

const TINY: Config = Config { context: 12, width: 16, layers: 2, heads: 2 };

fn model(name: &str, rows: usize, context: usize) -> Derived {
    let graph = thinwire_model::named(name, rows, context).unwrap();
    Derived::new(&graph, None).unwrap()
}

/// Buffers of one model in the order of another's parameters.
fn ordered(of: &[Parameter], to: &[Parameter], buffers: &[Vec<f32>]) -> Vec<Vec<f32>> {
    assert_eq!(of.len(), to.len());
    let place = |parameter: &Parameter| {
        of.iter().position(|p| (&p.name, &p.shape) == (&parameter.name, &parameter.shape))
    };
    to.iter().map(|parameter| buffers[place(parameter).expect(&parameter.name)].clone()).collect()
}

/// Golden values of PyTorch, by `testdata/gpt.py`.
#[derive(serde::Deserialize)]
struct Golden {
    losses: Vec<f32>,
    gradients: Vec<GoldenGradient>,
}

/// Norm of a parameter's gradient, and seven or eight of its elements, equally far apart.
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

    /// Values that the script begins with, by its formula, in the order of a model's parameters.
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
        Batch::new((0..Golden::ROWS * (TINY.context + 1)).map(byte).collect(), TINY.context)
    }
}

#[test]
fn gradients_are_those_of_pytorch() {
    let golden = Golden::new();
    // As one micro-batch, and as two.
    for rows in [4, 2] {
        let derived = model(&TINY.name(), rows, TINY.context);
        let values = golden.start(derived.parameters());
        let (loss, found) = gradients(&derived, &values, &Golden::batch(0));
        assert!((loss - golden.losses[0]).abs() < 1e-5, "{loss}, not {}", golden.losses[0]);
        assert!((derived.loss(&values, &Golden::batch(0)) - loss).abs() < 1e-5);
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
    let (values, state) =
        (golden.start(derived.parameters()), crate::AdamW::new(derived.parameters()));
    let mut trainer = Trainer::new(derived, Alone::new(), options(), 3);
    trainer.restore(0, values, state).unwrap();
    for (step, expected) in golden.losses.iter().enumerate() {
        let loss = trainer.step(&Golden::batch(step)).unwrap().loss;
        assert!((loss - expected).abs() < 1e-4, "step {step}: {loss}, not {expected}");
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
        let values = derived.initial(4);
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
    derived.loss(&derived.initial(4), &batch(3, 8, 1));
}

#[test]
fn a_seed_gives_one_start() {
    let derived = model("gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8", 2, 8);
    assert_eq!(derived.initial(4), derived.initial(4));
    assert_ne!(derived.initial(4), derived.initial(5));
}

#[test]
fn what_the_loss_does_not_depend_on_is_refused() {
    let name = "gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8";
    let mut graph = thinwire_model::named(name, 2, 8).unwrap();
    let (_, known) = graph.parameters().next().unwrap();
    let unread = thinwire_model::Tensor { name: "unread".to_owned(), ..known.clone() };
    graph.tensors.push(unread);
    let error = Derived::new(&graph, None).unwrap_err().to_string();
    assert_eq!(error, "unread: the loss does not depend on it, expected it to");
}

/// A GPT without dropouts, and the same with them.
fn dropping() -> [Derived; 2] {
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
    [gpt, dropped].map(|gpt| Derived::new(&gpt.graph(2, 8).unwrap(), None).unwrap())
}

#[test]
fn a_dropout_follows_the_batch_and_evaluation_has_none() {
    let [whole, dropped] = dropping();
    let values = dropped.initial(4);
    let (one, other) = (batch(2, 8, 1), batch(2, 8, 2));
    let loss = |batch| gradients(&dropped, &values, batch).0;
    assert_eq!(loss(&one), loss(&one));
    let lost = [&one, &other].map(|batch| loss(batch) - dropped.loss(&values, batch));
    assert!(lost[0] != 0.0 && lost[0] != lost[1], "{lost:?}");
    assert_ne!(moment(&one), moment(&other));
    let values = ordered(dropped.parameters(), whole.parameters(), &values);
    assert_eq!(dropped.loss(&dropped.initial(4), &one), whole.loss(&values, &one));
}

#[test]
fn every_micro_batch_has_random_numbers_of_its_own() {
    let [_, dropped] = dropping();
    let values = dropped.initial(4);
    let rows: Vec<u8> = batch(2, 8, 1).rows().flatten().copied().collect();
    let twice = Batch::new(rows.repeat(2), 8);
    let inputs = dropped.micro_batches(&twice);
    let losses = [0, 1].map(|at| {
        let run = Run::new(&dropped, &inputs[at], dropped.homes(&values));
        let mut run = run.with_dropout(moment(&twice) + at as u64);
        run.through(&dropped.forward, &mut nobody).unwrap()
    });
    assert_ne!(losses[0], losses[1]);
    assert_eq!(gradients(&dropped, &values, &twice).0, (losses[0] + losses[1]) / 2.0);
}
