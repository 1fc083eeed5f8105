//! Speed of neighbour sampling: R-MAT graph of 2^20 vertices and 2^24 edges, batches of 1,024 seeds out of a
//! tenth of the vertices.
//!
//! Prints sampled edges and seeds per second of processor time of one thread: the median of several rounds,
//! with the least and the most.
//!
//! `cargo run --release -p thinwire-graph --example sampling`

use rustix::time::{ClockId, clock_gettime};
use thinwire_graph::generate::Rmat;
use thinwire_graph::{Adjacency, Error, Frontier, Sample, Sampler, Sampling};
use thinwire_wire::random::{Key, permutation};

const SCALE: u32 = 20;
const BATCH: usize = 1024;
const BATCHES: usize = 20;
const ROUNDS: u64 = 9;

fn main() -> Result<(), Error> {
    let chances = Rmat::GRAPH500;
    let graph = Rmat { scale: SCALE, degree: 16, chances, seed: 4 }.graph()?;
    println!("R-MAT: {} vertices, {} edges", graph.vertices(), graph.edges());
    let order = permutation(Key { seed: 2, step: 0, tensor: 0 }, graph.vertices());
    let seeds: Vec<u32> = order.into_iter().filter(|vertex| graph.degree(*vertex) > 0).collect();
    for fan_outs in [&[15, 10, 5][..], &[25, 10], &[5, 10, 15]] {
        for frontier in [Frontier::All, Frontier::New] {
            let sampling = Sampling { frontier, ..Sampling::new(fan_outs) };
            measure(&graph, sampling, &seeds[..BATCH * BATCHES])?;
        }
    }
    Ok(())
}

fn measure(graph: &Adjacency, sampling: Sampling, seeds: &[u32]) -> Result<(), Error> {
    let (fan_outs, frontier) = (sampling.fan_outs.clone(), sampling.frontier);
    let mut sampler = Sampler::new(graph, sampling)?;
    let mut sample = Sample::new();
    let (mut speeds, mut edges, mut vertices) = (Vec::new(), 0, 0);
    for round in 0..=ROUNDS {
        (edges, vertices) = (0, 0);
        let start = seconds();
        for (batch, seeds) in (0..).zip(seeds.chunks(BATCH)) {
            let key = Key { seed: 1, step: round, tensor: batch };
            sampler.sample(graph, seeds, key, &mut sample)?;
            edges += sample.edges();
            vertices += sample.vertices.len();
        }
        // The first round allocates.
        if round > 0 {
            speeds.push(edges as f64 / (seconds() - start));
        }
    }
    speeds.sort_by(f64::total_cmp);
    let [least, median, most] = [0, speeds.len() / 2, speeds.len() - 1].map(|at| speeds[at] / 1e6);
    println!(
        "{fan_outs:?} {frontier:?}: {median:.1} M edges/s ({least:.1}-{most:.1}), {:.1} k seeds/s; {edges} edges, {vertices} vertices",
        median * 1e3 * seeds.len() as f64 / edges as f64,
    );
    Ok(())
}

fn seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
