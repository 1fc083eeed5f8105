//! The time of a training step on one rank, by phase, and when each gradient leaves.
//!
//! `cargo run --release -p thinwire-train --example step_time -- [WIDTH LAYERS HEADS STEPS]`

use std::time::Instant;

use thinwire_train::spmd::Derived;
use thinwire_train::{
    AdamWOptions, Alone, Config, Corpus, Exchange, Failure, Gradients, LearningRate, Model,
    Options, Outcome, Sampler, Sampling, StepReport, Trainer, threads,
};
use thinwire_wire::World;

/// Rows of a step.
const ROWS: usize = 8;

/// [`Alone`], noting when gradients come.
struct Noted {
    alone: Alone,
    began: Instant,
    ready_s: Vec<f64>,
}

impl Exchange for Noted {
    fn begin(&mut self, step: u64) -> Result<(), Failure> {
        self.ready_s.clear();
        self.began = Instant::now();
        self.alone.begin(step)
    }

    fn ready(&mut self, parameter: usize, gradient: &[f32]) -> Result<(), Failure> {
        self.ready_s.push(self.began.elapsed().as_secs_f64());
        self.alone.ready(parameter, gradient)
    }

    fn finish(&mut self) -> Result<Outcome, Failure> {
        self.alone.finish()
    }

    fn gradient(&self, parameter: usize) -> &[f32] {
        self.alone.gradient(parameter)
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let mut next = |default| arguments.next().unwrap_or(default);
    let config = Config { context: 128, width: next(128), layers: next(4), heads: next(4) };
    let steps = next(20);
    threads::run(1, || measure(config, steps))?
}

fn measure(config: Config, steps: usize) -> Result<(), Failure> {
    config.check()?;
    let graph = thinwire_model::named(&config.name(), ROWS, config.context)?;
    let text: Vec<u8> = (0..200_000_u32).map(|i| b'a' + (i * i / 11 % 26) as u8).collect();
    let sampling =
        Sampling { context: config.context, global_batch: ROWS, world: World::alone(), seed: 1 };
    let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
    let options = Options {
        adamw: AdamWOptions::default(),
        learning_rate: LearningRate { peak: 1e-3, floor: 1e-4, warmup_steps: 5, steps: 100 },
        gradient_norm_max: Some(1.0),
        gradients: Gradients::F32,
    };
    let exchange = Noted { alone: Alone::new(), began: Instant::now(), ready_s: Vec::new() };
    let mut trainer = Trainer::new(Derived::new(&graph, None)?, exchange, options, 1);
    println!("{}", config.name());

    let mut reports = Vec::new();
    let mut forwards = Vec::new();
    for _ in 0..steps {
        let batch = sampler.next_batch();
        let started = Instant::now();
        trainer.loss(std::slice::from_ref(&batch));
        forwards.push(started.elapsed().as_secs_f64());
        reports.push((trainer.step(&batch)?, trainer.exchange().ready_s.clone()));
    }
    report(&trainer, &reports, &forwards);
    Ok(())
}

fn report(trainer: &Trainer<Derived, Noted>, reports: &[(StepReport, Vec<f64>)], forwards: &[f64]) {
    let parameters = trainer.model().parameters();
    let elements: usize = parameters.iter().map(|parameter| parameter.elements()).sum();
    println!("{elements} parameters, batch {ROWS}");
    let line = |name: &str, values: Vec<f64>| {
        let [least, median] = least_and_median(values);
        println!("{name:24} least {:8.2} ms  median {:8.2} ms", least * 1e3, median * 1e3);
    };
    line("loss without gradients", forwards.to_vec());
    let phase = |of: fn(&StepReport) -> f64| reports.iter().map(|(report, _)| of(report)).collect();
    line("forward and backward", phase(|r| r.compute_s));
    line("handover (copy)", phase(|r| r.handover_s));
    line("optimiser", phase(|r| r.optimizer_s));
    line("step", phase(|r| r.compute_s + r.handover_s + r.exposed_wait_s + r.optimizer_s));
    let (_, ready_s) = reports
        .iter()
        .min_by(|a, b| a.0.compute_s.total_cmp(&b.0.compute_s))
        .expect("at least one step");
    let end = ready_s[ready_s.len() - 1];
    let mut left = 0;
    for (index, parameter) in parameters.iter().enumerate() {
        left += parameter.elements();
        let segment = |name: &str| name.split('.').take(3).collect::<Vec<_>>().join(".");
        let next = parameters.get(index + 1).map(|next| segment(&next.name));
        if parameter.name.starts_with("block") && next.as_ref() != Some(&segment(&parameter.name)) {
            let share = left as f64 / elements as f64;
            println!(
                "{:24} at {:5.1} % of backward's end: {:5.1} % of the elements have left",
                segment(&parameter.name),
                100.0 * ready_s[index] / end,
                100.0 * share
            );
        }
    }
    println!("loss {:.4} to {:.4}", reports[0].0.loss, reports[reports.len() - 1].0.loss);
}

fn least_and_median(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2]]
}
