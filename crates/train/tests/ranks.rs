//! Training on several ranks: as one rank would, and the same everywhere.

use thinwire_collective::Group;
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{ExchangeOptions, Executor, GraphModel, initial};
use thinwire_train::{Adam, AdamWOptions, Config, Corpus, LearningRate, Pace, Sampler, Sampling};

const CONTEXT: usize = 16;
const GLOBAL_BATCH: usize = 12;

fn corpus() -> Corpus {
    let text = b"the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. ";
    Corpus::from_text(&text.repeat(60)).unwrap()
}

/// A small model for so many rows.
fn small(rows: usize) -> GraphModel {
    let config = Config { context: CONTEXT, width: 32, layers: 1, heads: 2 };
    GraphModel::new(&thinwire_model::named(&config.name(), rows, CONTEXT).unwrap(), None).unwrap()
}

/// The exchange by a codec, or that of 1-bit Adam.
fn exchange(codec: &str) -> ExchangeOptions {
    let (adam, codec) = match codec {
        "onebit-adam" => (Adam::OneBit, "onebit"),
        "zero-one-adam" => (Adam::ZeroOne, "onebit"),
        codec => (Adam::AdamW, codec),
    };
    let policy = codec.parse().unwrap();
    let sync = thinwire_sync::Options { policy, bucket_bytes: 8 << 10, ..Default::default() };
    ExchangeOptions { sync, adam, ..Default::default() }
}

/// The mean loss of each step, and this rank's parameters as bits after each step.
fn train(
    ranks: usize,
    codec: &str,
    steps: u64,
    model: impl Fn(usize) -> GraphModel + Sync,
) -> Vec<(Vec<f64>, Vec<u32>)> {
    spawn(Network::Mem, ranks, |link| {
        let exchange = exchange(codec);
        let world = link.world();
        let sampling =
            Sampling { context: CONTEXT, global_batch: GLOBAL_BATCH, unit: 1, world, seed: 5 };
        let model = model(sampling.rows().len());
        let mut sampler = Sampler::new(corpus(), sampling).unwrap();
        let rate = LearningRate { peak: 5e-3, floor: 5e-4, warmup_steps: 5, steps };
        let training = model.training();
        let start = initial(&training.graph, 9);
        let group = Group::new(link);
        let executor = Executor::new(training, &model.plan(1), group, &start, exchange).unwrap();
        let mut executor = executor.with_gradient_norm_max(Some(1.0));
        executor.set_share(sampling.share()).unwrap();
        let (mut losses, mut bits) = (Vec::new(), Vec::new());
        for step in 0..steps {
            let pace = Pace { learning_rate: rate.at(step), gradient_scale: 1.0 };
            let inputs = model.micro_batches(&sampler.next_batch());
            executor.step(&inputs, pace, &AdamWOptions::default()).unwrap();
            assert!(executor.gradient_norm().is_finite());
            losses.push(executor.agreed().loss);
            let parameters = executor.whole().unwrap().unwrap();
            let state: Vec<u8> =
                parameters.values().flatten().flat_map(|x| x.to_le_bytes()).collect();
            bits.push(thinwire_wire::checksum(&state));
        }
        (losses, bits)
    })
}

#[test]
fn many_ranks_train_as_one() {
    let config = Config { context: CONTEXT, width: 32, layers: 2, heads: 2 };
    let sizes = "layers=1,width=16,heads=2";
    let llama = format!("llama:{sizes},key_heads=1,feed_forward=32,vocabulary=256,positions=16");
    for (name, steps) in [(config.name(), 50), (llama, 20)] {
        let model = |rows| {
            GraphModel::new(&thinwire_model::named(&name, rows, CONTEXT).unwrap(), None).unwrap()
        };
        let alone = &train(1, "none", steps, model)[0].0;
        assert!(alone[steps as usize - 1] < alone[0] - 0.5, "{name} learns: {alone:?}");
        // Five ranks have three or two rows each.
        for ranks in [2, 4, 5] {
            let many = &train(ranks, "none", steps, model)[0].0;
            for (step, (one, many)) in alone.iter().zip(many).enumerate() {
                let close = (one - many).abs() < 1e-4;
                assert!(close, "{name}, {ranks} ranks, step {step}: {one} and {many}");
            }
        }
    }
}

#[test]
fn parameters_are_the_same_bits_on_all_ranks_after_every_step_with_every_codec() {
    for codec in [
        "none",
        "f16",
        "bf16",
        "int8",
        "int8:stochastic",
        "int4",
        "topk:0.02",
        "powersgd:2",
        "auto",
    ] {
        for ranks in [2, 3] {
            let all = train(ranks, codec, 8, small);
            for (_, bits) in &all {
                assert_eq!(*bits, all[0].1, "{codec} on {ranks} ranks");
            }
        }
    }
}

#[test]
fn lossy_codecs_with_feedback_learn_as_raw_does() {
    let fall = |codec: &str| {
        let losses = &train(2, codec, 120, small)[0].0;
        losses[0] - losses[110..].iter().sum::<f64>() / 10.0
    };
    let raw = fall("none");
    for codec in ["int8", "int4", "bf16"] {
        let lossy = fall(codec);
        assert!((lossy / raw - 1.0).abs() < 0.02, "{codec}: fell by {lossy}, raw by {raw}");
    }
}

#[test]
fn adam_by_momenta_learns_as_adamw_does() {
    let fall = |codec: &str| {
        let all = train(2, codec, 300, small);
        // Under 0/1 Adam ranks are alike where something has travelled.
        assert!(all[0].1 == all[1].1 || codec == "zero-one-adam", "{codec}");
        let losses = &all[0].0;
        losses[0] - losses[280..].iter().sum::<f64>() / 20.0
    };
    let raw = fall("none");
    for adam in ["onebit-adam", "zero-one-adam"] {
        let fell = fall(adam);
        assert!((fell / raw - 1.0).abs() < 0.01, "{adam}: fell by {fell}, adamw by {raw}");
    }
}
