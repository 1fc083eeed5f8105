//! How long planning takes, and planning again: `speed MODEL NODES BATCH [compare]`, on nodes of
//! eight A100. After each change the plan is said to be how much slower than a fresh search's,
//! where `compare` asks for it.

use std::error::Error as Fault;
use std::time::Instant;

use thinwire_plan::output::report;
use thinwire_plan::search::{Found, Planner, Settings};
use thinwire_plan::{Cluster, Error};

/// What changes, nodes that are lost, and Gbit/s within and between nodes.
const CHANGES: &[(&str, usize, f64, f64)] = &[
    ("first", 0, 2400.0, 800.0),
    ("half", 0, 2400.0, 400.0),
    ("four times as fast", 0, 2400.0, 1600.0),
    ("back", 0, 2400.0, 800.0),
    ("quarter within nodes", 0, 600.0, 800.0),
    ("back", 0, 2400.0, 800.0),
    ("a node lost", 1, 2400.0, 800.0),
    ("back", 0, 2400.0, 800.0),
    ("two nodes lost", 2, 2400.0, 800.0),
    ("a tenth", 0, 2400.0, 80.0),
];

fn cluster(nodes: usize, within: f64, between: f64) -> Result<Cluster, Error> {
    Cluster::parse(&format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\nmemory_gbyte_per_s = 2039\n\
         memory_efficiency = 0.75\noverhead_us = 15\nefficiency = [[0.1, 0.02], [1, 0.15], [10, 0.5], [100, 0.72], [1000, 0.77]]\n\
         [[level]]\nname = \"node\"\nsize = 8\nlatency_us = 5\ngbit = {within}\n\
         [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 10\ngbit = {between}\n"
    ))
}

fn main() -> Result<(), Box<dyn Fault>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, nodes, batch, compare @ ..] = &arguments[..] else {
        return Err("expected MODEL NODES BATCH [compare]".into());
    };
    let (nodes, batch): (usize, usize) = (nodes.parse()?, batch.parse()?);
    let mut planner = planner(name, batch);
    for (what, lost, within, between) in CHANGES {
        let cluster = cluster(nodes - lost, *within, *between)?;
        let (found, time) = timed(&mut planner, &cluster)?;
        let [all, solved] = found.candidates;
        let (seconds, gap) = (found.best.seconds, 100.0 * found.gap());
        println!("{what}: {time}, {solved} of {all} solved, step {seconds:.4} s, gap {gap:.2} %");
        if !compare.is_empty() {
            let (fresh, time) = timed(&mut self::planner(name, batch), &cluster)?;
            let slower = 100.0 * (seconds / fresh.best.seconds - 1.0);
            let holds = found.bound_s <= fresh.best.seconds;
            println!("    anew: {time}; planned again it is {slower:+.2} % slower, bound {holds}");
        } else if *what == "first" {
            println!("{}", report(&planner, &cluster, &found)?);
        }
    }
    Ok(())
}

fn planner(name: &str, batch: usize) -> Planner {
    let (name, sequence) = (name.to_owned(), thinwire_model::usual_sequence(name));
    Planner::new(batch, Settings::default(), move |batch| {
        thinwire_model::named(&name, batch, sequence).map_err(|error| Error::from_model(&error))
    })
}

fn timed(planner: &mut Planner, cluster: &Cluster) -> Result<(Found, String), Error> {
    let (start, before_ms) = (Instant::now(), busy_ms());
    let found = planner.plan(cluster)?;
    let (elapsed_ms, busy_ms) = (1e3 * start.elapsed().as_secs_f64(), busy_ms() - before_ms);
    Ok((found, format!("{elapsed_ms:.0} ms, {busy_ms:.0} ms of processors")))
}

/// Milliseconds in which all threads of this process were on a processor, as Linux counts them.
fn busy_ms() -> f64 {
    let busy_ns = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    1e-6 * tasks.filter_map(busy_ns).sum::<f64>()
}
