//! What is derived is what the reference does: one batch, and trainings.

use super::*;
use crate::gpt::Gpt;
use crate::testing::{assert_differences_agree, batch, gradients, options};
use crate::{Alone, Config, Trainer, initial_values};

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

/// The reference away from its symmetric start.
fn reference() -> (Gpt, Vec<Vec<f32>>) {
    let gpt = Gpt::new(TINY).unwrap();
    let noise = |p: &Parameter| Parameter { initial: Initial::Normal(0.2), ..p.clone() };
    let noise = initial_values(&gpt.parameters().iter().map(noise).collect::<Vec<_>>(), 8);
    let mut values = gpt.initial(7);
    values.iter_mut().flatten().zip(noise.iter().flatten()).for_each(|(v, n)| *v += n);
    (gpt, values)
}

#[test]
fn gradients_are_those_of_autodiff() {
    let (gpt, values) = reference();
    let batch = batch(6, TINY.context, 5);
    let (loss, expected) = gradients(&gpt, &values, &batch);
    // As one micro-batch, and as three.
    for rows in [6, 2] {
        let derived = model(&TINY.name(), rows, TINY.context);
        let values = ordered(gpt.parameters(), derived.parameters(), &values);
        let (found_loss, found) = gradients(&derived, &values, &batch);
        assert!((found_loss - loss).abs() < 1e-5, "{found_loss} and {loss}");
        assert!((derived.loss(&values, &batch) - loss).abs() < 1e-5);
        let found = ordered(derived.parameters(), gpt.parameters(), &found);
        for ((parameter, found), expected) in gpt.parameters().iter().zip(&found).zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                let name = &parameter.name;
                assert!((found - expected).abs() < 1e-5, "{name}: {found} and {expected}");
            }
        }
    }
}

#[test]
fn twenty_steps_are_those_of_autodiff() {
    let gpt = Gpt::new(TINY).unwrap();
    let derived = model(&TINY.name(), 4, TINY.context);
    let values = ordered(gpt.parameters(), derived.parameters(), &gpt.initial(3));
    let state = crate::AdamW::new(derived.parameters());
    let mut expected = Trainer::new(gpt, Alone::new(), options(), 3);
    let mut found = Trainer::new(derived, Alone::new(), options(), 3);
    found.restore(0, values, state).unwrap();
    for step in 0..20 {
        let batch = batch(4, TINY.context, step);
        let losses = [found.step(&batch).unwrap().loss, expected.step(&batch).unwrap().loss];
        assert!((losses[0] - losses[1]).abs() < 1e-4, "step {step}: {losses:?}");
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
