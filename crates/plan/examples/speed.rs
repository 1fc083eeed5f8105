//! How long planning takes: `speed MODEL NODES BATCH`, on nodes of eight A100.

use std::time::Instant;

use thinwire_plan::output::report;
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

fn cluster(nodes: usize, gbit: f64) -> Cluster {
    Cluster::parse(&format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\nmemory_gbyte_per_s = 2039\n\
         memory_efficiency = 0.75\noverhead_us = 15\nefficiency = [[0.1, 0.02], [1, 0.15], [10, 0.5], [100, 0.72], [1000, 0.77]]\n\
         [[level]]\nname = \"node\"\nsize = 8\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 10\ngbit = {gbit}\n"
    ))
    .unwrap()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let name = arguments[1].clone();
    let (nodes, batch): (usize, usize) =
        (arguments[2].parse().unwrap(), arguments[3].parse().unwrap());
    let sequence = thinwire_model::usual_sequence(&name);
    let mut planner = Planner::new(batch, Settings::default(), move |batch| {
        thinwire_model::named(&name, batch, sequence).map_err(|error| Error::from_model(&error))
    });
    for gbit in [800.0, 400.0, 1600.0, 800.0] {
        let cluster = cluster(nodes, gbit);
        let (start, before_ms) = (Instant::now(), busy_ms());
        let found = planner.plan(&cluster).unwrap();
        let busy_ms = busy_ms() - before_ms;
        let (elapsed, [all, solved]) = (start.elapsed(), found.candidates);
        let elapsed_ms = 1e3 * elapsed.as_secs_f64();
        println!(
            "{gbit} Gbit/s: {elapsed_ms:.0} ms, {busy_ms} ms of processors, {solved} of {all} solved"
        );
        println!("{}", report(&planner, &cluster, &found).unwrap());
    }
}

/// Milliseconds in which all threads of this process were on a processor; Linux counts hundredths
/// of seconds.
fn busy_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}
