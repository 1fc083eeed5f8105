//! How long planning takes: `speed MODEL NODES BATCH`, on nodes of eight A100, with the report.

use std::error::Error as Fault;
use std::time::Instant;

use thinwire_plan::report::report;
use thinwire_plan::search::{Planner, Settings};
use thinwire_plan::{Cluster, Error};

fn cluster(nodes: usize) -> Result<Cluster, Error> {
    Cluster::parse(&format!(
        "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\nmemory_gbyte_per_s = 2039\n\
         memory_efficiency = 0.75\noverhead_us = 15\nefficiency = [[0.1, 0.02], [1, 0.15], [10, 0.5], [100, 0.72], [1000, 0.77]]\n\
         [[level]]\nname = \"node\"\nsize = 8\nlatency_us = 5\ngbit = 2400\n\
         [[level]]\nname = \"pod\"\nsize = {nodes}\nlatency_us = 10\ngbit = 800\n"
    ))
}

fn main() -> Result<(), Box<dyn Fault>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, nodes, batch] = &arguments[..] else {
        return Err("expected MODEL NODES BATCH".into());
    };
    let (cluster, sequence) = (cluster(nodes.parse()?)?, thinwire_model::usual_sequence(name));
    let model = name.clone();
    let mut planner = Planner::new(batch.parse()?, Settings::default(), move |batch| {
        thinwire_model::named(&model, batch, sequence).map_err(|error| Error::from_model(&error))
    });
    let (start, before_ms) = (Instant::now(), busy_ms());
    let found = planner.plan(&cluster)?;
    let (elapsed_ms, busy_ms) = (1e3 * start.elapsed().as_secs_f64(), busy_ms() - before_ms);
    println!("{elapsed_ms:.0} ms, {busy_ms:.0} ms of processors");
    println!("{}", report(&planner, &cluster, &found)?);
    Ok(())
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
