//! A step of the executor beside one of the segment trainer, on one rank and one thread.
//!
//! `cargo run --release -p thinwire-train --example planned_step -- [WIDTH LAYERS HEADS ROUNDS]`
//!
//! Both learn a GPT of the same sizes from the same text, in turns. Seconds are of the process's
//! CPU time, which other processes do not lengthen much.

use thinwire_collective::Group;
use thinwire_model::{backward, named};
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{Machine, Plan, Text, initial};
use thinwire_train::{
    AdamWOptions, Alone, Batch, Config, Corpus, Error, Gpt, Options, Pace, Sampler, Sampling,
    Trainer, threads,
};
use thinwire_wire::World;

const CONTEXT: usize = 128;
const ROWS: usize = 16;
const STEPS: usize = 4;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let mut next = |default| arguments.next().unwrap_or(default);
    let config = Config { context: CONTEXT, width: next(128), layers: next(4), heads: next(4) };
    let rounds = next(5);
    let measured = spawn(Network::Mem, 1, |link| {
        threads::run(1, || measure(config, rounds, Group::new(link)))?
    });
    measured.into_iter().collect()
}

fn measure(config: Config, rounds: usize, group: Group) -> Result<(), Error> {
    let text: Vec<u8> = (0..200_000_u32).map(|i| b'a' + (i * i / 11 % 26) as u8).collect();
    let sampling =
        Sampling { context: CONTEXT, global_batch: ROWS, world: World::alone(), seed: 1 };
    let mut sampler = Sampler::new(Corpus::from_text(&text)?, sampling)?;
    let batches: Vec<Batch> = (0..STEPS).map(|_| sampler.next_batch()).collect();
    let options = Options { gradient_norm_max: None, ..Options::default() };
    let mut trainer = Trainer::new(Gpt::new(config)?, Alone::new(), options, 1);
    let Config { width, layers, heads, .. } = config;
    let name = format!(
        "gpt:layers={layers},width={width},heads={heads},vocabulary=256,positions={CONTEXT}"
    );
    let graph = named(&name, ROWS, CONTEXT).expect("a model of these sizes");
    let training = backward(&graph).expect("a model with a loss");
    let (plan, reads) = (Plan::alone(&graph), Text::new(&graph)?);
    let mut machine = Machine::new(&training, &plan, group, &initial(&graph, 1))?;
    let pace = Pace { learning_rate: 1e-3, gradient_scale: 1.0 };
    for round in 0..rounds {
        let begun = cpu_s();
        batches.iter().try_for_each(|batch| trainer.step(batch).map(drop))?;
        let between = cpu_s();
        for batch in &batches {
            machine.step(&reads.inputs(batch), pace, &AdamWOptions::default())?;
        }
        let each = |seconds: f64| 1e3 * seconds / STEPS as f64;
        let (segments, planned) = (each(between - begun), each(cpu_s() - between));
        println!(
            "round {round}: segments {segments:.1} ms, planned {planned:.1} ms, {:.3} of it",
            planned / segments
        );
    }
    Ok(())
}

/// Seconds of CPU time that this process has used.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or("").split(' ').skip(11).take(2);
    let ticks: f64 = fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / 100.0
}
