//! Codecs planned together with shardings, beside codecs chosen for shardings that were planned
//! first: `codecs [BUDGET [MODEL...]]`, for models on nodes of eight A100 with 25 Gbit/s between nodes.

#[path = "../tests/baseline/mod.rs"]
mod baseline;

use std::error::Error as Fault;

use thinwire_plan::cost::Coding;
use thinwire_plan::report::{recompute_text, zero_text};
use thinwire_plan::search::{Outcome, Planner, Settings};
use thinwire_plan::{Cluster, Error};

/// Model, nodes, devices of a node, sequences of a step.
const CASES: &[(&str, usize, usize, usize)] = &[
    ("gpt2-medium", 8, 1, 64),
    ("gpt2-xl", 8, 8, 256),
    ("gpt3-6.7b", 8, 8, 256),
    ("gpt3-13b", 16, 8, 512),
    ("llama2-7b", 8, 8, 256),
    ("bert-large", 8, 8, 1024),
    ("vgg16", 8, 8, 2048),
    ("resnet50", 8, 8, 2048),
    ("moe-small", 8, 8, 256),
];

fn main() -> Result<(), Box<dyn Fault>> {
    let budget: f64 = std::env::args().nth(1).map_or(Ok(0.1), |text| text.parse())?;
    println!(
        "| model | devices | raw | codecs after | together | faster | plan after | plan together |"
    );
    println!("|---|--:|--:|--:|--:|--:|---|---|");
    let asked: Vec<String> = std::env::args().skip(2).collect();
    for (name, nodes, devices, batch) in CASES {
        if !asked.is_empty() && !asked.iter().any(|one| one == name) {
            continue;
        }
        let cluster = cluster(*nodes, *devices)?;
        let codings = ["int8", "int4"].map(Coding::parse);
        let codings = codings.into_iter().collect::<Result<Vec<_>, _>>()?;
        let with = Settings { codings, error_budget: budget, ..Settings::default() };
        let raw = planner(name, *batch, Settings::default()).plan(&cluster)?.best;
        let mut planner = planner(name, *batch, with);
        let together = planner.plan(&cluster)?.best;
        let after = baseline::codecs_after(&planner, &cluster, &raw);
        let faster = 100.0 * (1.0 - together.seconds / after.seconds);
        let milliseconds = |plan: &Outcome| format!("{:.1} ms", 1e3 * plan.seconds);
        println!(
            "| {name} | {nodes} x {devices} | {} | {} | {} | {faster:.1} % | {} | {} |",
            milliseconds(&raw),
            milliseconds(&after),
            milliseconds(&together),
            describe(&after),
            describe(&together),
        );
    }
    Ok(())
}

fn planner(name: &'static str, batch: usize, settings: Settings) -> Planner {
    let sequence = thinwire_model::usual_sequence(name);
    Planner::new(batch, settings, move |batch| {
        thinwire_model::named(name, batch, sequence).map_err(|error| Error::from_model(&error))
    })
}

fn describe(plan: &Outcome) -> String {
    let candidate = &plan.candidate;
    let mesh: Vec<String> = candidate.mesh.iter().map(usize::to_string).collect();
    format!(
        "{} of {}, {} micro-batches, {}{}",
        candidate.stages,
        mesh.join(" x "),
        candidate.micro_batches,
        zero_text(plan),
        recompute_text(plan)
    )
}

fn cluster(nodes: usize, devices: usize) -> Result<Cluster, Error> {
    Cluster::parse(&format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\nmemory_gbyte_per_s = 2039\n\
         memory_efficiency = 0.75\noverhead_us = 15\nefficiency = [[0.1, 0.02], [1, 0.15], [10, 0.5], [100, 0.72], [1000, 0.77]]\n\
         [[level]]\nname = \"node\"\nsize = {devices}\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 10\ngbit = 25\n"
    ))
}
