//! Time of a training step on one rank, by phase.
//!
//! `cargo run --release -p thinwire-train --example step_time -- [WIDTH LAYERS HEADS STEPS ROWS THREADS]`

use std::error::Error;
use std::time::Instant;

use thinwire_collective::Group;
use thinwire_train::spmd::{ExchangeOptions, Executor, GraphModel, initial};
use thinwire_train::{
    AdamWOptions, Config, Corpus, LearningRate, Pace, Sampler, Sampling, with_threads,
};
use thinwire_wire::World;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let mut next = |default| arguments.next().unwrap_or(default);
    let config = Config { context: 128, width: next(128), layers: next(4), heads: next(4) };
    let (steps, rows, threads) = (next(20), next(8), next(1));
    with_threads(threads, || measure(config, steps, rows).map_err(|error| error.to_string()))??;
    Ok(())
}

fn measure(config: Config, steps: usize, rows: usize) -> Result<(), Box<dyn Error>> {
    config.check()?;
    let model = GraphModel::new(&thinwire_model::named(&config.name(), rows, 128)?, None)?;
    let text: Vec<u8> = (0..200_000_u32).map(|i| b'a' + (i * i / 11 % 26) as u8).collect();
    let sampling = Sampling {
        context: config.context,
        global_batch: rows,
        unit: 1,
        world: World::alone(),
        seed: 1,
    };
    let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
    let rate = LearningRate { peak: 1e-3, floor: 1e-4, warmup_steps: 5, steps: 100 };
    let group = Group::new(thinwire_link::mem::alone());
    let (training, start) = (model.training(), initial(&model.training().graph, 1));
    let exchange = ExchangeOptions::default();
    let executor = Executor::new(training, &model.plan(1), group, &start, exchange)?;
    let mut executor = executor.with_gradient_norm_max(Some(1.0));

    let (mut forwards, mut phases, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..steps {
        let inputs = model.micro_batches(&sampler.next_batch());
        let started = Instant::now();
        executor.evaluate(&inputs)?;
        forwards.push(started.elapsed().as_secs_f64());
        let started = Instant::now();
        let pace = Pace { learning_rate: rate.at(step as u64), gradient_scale: 1.0 };
        executor.step(&inputs, pace, &AdamWOptions::default())?;
        let step_s = started.elapsed().as_secs_f64();
        let [handover_s, wait_s] = executor.exchange_s();
        let optimizer_s = executor.optimizer_s();
        phases.push([step_s - handover_s - wait_s - optimizer_s, handover_s, optimizer_s, step_s]);
        losses.push(executor.agreed().loss);
    }
    let elements: usize = model.parameters().iter().map(|parameter| parameter.elements()).sum();
    println!("{}: {elements} parameters, {rows} rows", config.name());
    report("loss without gradients", forwards);
    let names = ["forward and backward", "handover (copy)", "optimiser", "step"];
    for (at, name) in names.into_iter().enumerate() {
        report(name, phases.iter().map(|phases| phases[at]).collect());
    }
    println!("loss {:.4} to {:.4}", losses[0], losses[losses.len() - 1]);
    Ok(())
}

fn report(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let (least, median) = (1e3 * values[0], 1e3 * values[values.len() / 2]);
    println!("{name:24} least {least:8.2} ms  median {median:8.2} ms");
}
