//! Time of a training step on one rank, by phase.
//!
//! `cargo run --release -p thinwire-train --example step_time -- [WIDTH LAYERS HEADS STEPS ROWS THREADS]`

use std::error::Error;
use std::time::Instant;

use thinwire_collective::Group;
use thinwire_train::spmd::GraphModel;
use thinwire_train::{
    Config, Corpus, LearningRate, Options, Sampler, Sampling, StepReport, Trainer, threads,
};
use thinwire_wire::World;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let mut next = |default| arguments.next().unwrap_or(default);
    let config = Config { context: 128, width: next(128), layers: next(4), heads: next(4) };
    let (steps, rows, threads) = (next(20), next(8), next(1));
    threads::run(threads, || measure(config, steps, rows).map_err(|error| error.to_string()))??;
    Ok(())
}

fn measure(config: Config, steps: usize, rows: usize) -> Result<(), Box<dyn Error>> {
    config.check()?;
    let model = GraphModel::new(&thinwire_model::named(&config.name(), rows, 128)?, None)?;
    let text: Vec<u8> = (0..200_000_u32).map(|i| b'a' + (i * i / 11 % 26) as u8).collect();
    let sampling =
        Sampling { context: config.context, global_batch: rows, world: World::alone(), seed: 1 };
    let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
    let options = Options {
        learning_rate: LearningRate { peak: 1e-3, floor: 1e-4, warmup_steps: 5, steps: 100 },
        ..Options::default()
    };
    let group = Group::new(Box::new(thinwire_link::mem::alone()));
    let mut trainer = Trainer::new(&model, group, Default::default(), options, 1)?;

    let mut reports = Vec::new();
    let mut forwards = Vec::new();
    for _ in 0..steps {
        let batch = sampler.next_batch();
        let started = Instant::now();
        trainer.loss(std::slice::from_ref(&batch))?;
        forwards.push(started.elapsed().as_secs_f64());
        reports.push(trainer.step(&batch)?);
    }
    let elements: usize = model.parameters().iter().map(|parameter| parameter.elements()).sum();
    println!("{}: {elements} parameters, {rows} rows", config.name());
    report(&reports, &forwards);
    Ok(())
}

fn report(reports: &[StepReport], forwards: &[f64]) {
    let line = |name: &str, values: Vec<f64>| {
        let [least, median] = least_and_median(values);
        println!("{name:24} least {:8.2} ms  median {:8.2} ms", least * 1e3, median * 1e3);
    };
    line("loss without gradients", forwards.to_vec());
    let phase = |of: fn(&StepReport) -> f64| reports.iter().map(of).collect();
    line("forward and backward", phase(|r| r.compute_s));
    line("handover (copy)", phase(|r| r.handover_s));
    line("optimiser", phase(|r| r.optimizer_s));
    line("step", phase(|r| r.compute_s + r.handover_s + r.exposed_wait_s + r.optimizer_s));
    println!("loss {:.4} to {:.4}", reports[0].loss, reports[reports.len() - 1].loss);
}

fn least_and_median(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2]]
}
