//! x
use std::time::Instant;
use thinwire_plan::search::*;
use thinwire_plan::stage::Weights;
use thinwire_plan::{Cluster, cost::Sharding};
fn main() {
    let cluster = Cluster::parse("[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\nmemory_gbyte_per_s = 2039\n[[level]]\nname = \"node\"\nsize = 8\nlatency_us = 5\ngbit = 2400\n[[level]]\nname = \"pod\"\nsize = 128\nlatency_us = 10\ngbit = 800\n").unwrap();
    let t = Instant::now();
    let graph = thinwire_model::named("gpt3-175b", 16, 2048).unwrap();
    println!("graph {:?}", t.elapsed());
    let t = Instant::now();
    let prepared = Prepared::new(graph).unwrap();
    println!("prepare {:?} classes {}", t.elapsed(), prepared.classes.len());
    let candidate = Candidate {
        stages: 16,
        mesh: vec![16, 4],
        micro_batches: 96,
        sharding: Sharding::Optimizer,
        rule: Rule::Free,
    };
    let s = Settings::default();
    for rule in [Rule::Free, Rule::Grid, Rule::Data] {
        let candidate = Candidate { rule, ..candidate.clone() };
        let costs = costs(&cluster, &candidate, &s);
        let t = Instant::now();
        let mut chain = Chain::new(&prepared, &costs, rule).unwrap();
        for _ in 0..4 {
            chain = Chain::new(&prepared, &costs, rule).unwrap();
        }
        println!("{rule:?} chain {:?}", t.elapsed() / 5);
        let t = Instant::now();
        for _ in 0..5 {
            chain.solve(&Weights::ONCE, 0.0);
        }
        println!("solve {:?}", t.elapsed() / 5);
        let t = Instant::now();
        bound_s(&cluster, &prepared, &candidate, &s);
        println!("bound {:?}", t.elapsed());
    }
}
