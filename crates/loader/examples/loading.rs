//! Speed of a loader: R-MAT graph of 2^20 vertices and 2^24 edges, fan-outs 15, 10 and 5, batches of 1,024
//! seeds, rows of 128 f32 in memory.
//!
//! Prints seeds per second of processor time of the whole process and per second, for one sampling thread
//! and more, without a cache and with a foreseeing one of a tenth of the rows; and for comparison the
//! time of a plain copy of the same rows. Medians of several rounds, with the least and the most.
//!
//! `cargo run --release -p thinwire-loader --example loading`

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use thinwire_graph::generate::Rmat;
use thinwire_graph::{Adjacency, Batches, Sampling};
use thinwire_loader::{Features, Loader, Options, Policy};
use thinwire_rows::Frozen;
use thinwire_wire::random::{Key, permutation};

const WIDTH: usize = 128 * 4;
const BATCH: u32 = 1024;
const BATCHES: usize = 20;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let chances = Rmat::GRAPH500;
    let graph = Arc::new(Rmat { scale: 20, degree: 16, chances, seed: 4 }.graph()?);
    let order = permutation(Key { seed: 2, step: 0, tensor: 0 }, graph.vertices());
    let seeds = order.into_iter().filter(|vertex| graph.degree(*vertex) > 0);
    let training: Vec<u32> = seeds.take((graph.vertices() / 10) as usize).collect();
    let batches = Batches::global(training, 1, BATCH, 1)?;
    let bytes = || (0..graph.vertices() as usize * WIDTH).map(|at| (at >> 3) as u8).collect();
    for threads in [1, 2] {
        let features = Features::direct(Frozen::in_memory(bytes(), WIDTH)?);
        measure("no cache", threads, &graph, &batches, features)?;
    }
    let source = Frozen::in_memory(bytes(), WIDTH)?;
    let limit = u64::from(graph.vertices() / 10) * 600;
    let features = Features::cached(source, limit, Policy::Foreseen);
    measure("foreseen, a tenth", 1, &graph, &batches, features)?;
    let table: Vec<u8> = bytes();
    copy(&graph, &batches, &table)
}

fn measure(
    name: &str,
    threads: usize,
    graph: &Arc<Adjacency>,
    batches: &Batches,
    features: Features,
) -> Result<(), Box<dyn Error>> {
    let options = Options { threads, ..Options::new(Sampling::new(&[15, 10, 5]), 0) };
    let mut loader = Loader::start(graph.clone(), batches.clone(), features, options)?;
    let (mut busy, mut real) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (start, clock, mut seeds) = (seconds(), Instant::now(), 0.0);
        for _ in 0..BATCHES {
            seeds += f64::from(black_box(loader.next()?).sample().seeds);
        }
        if round > 0 {
            busy.push(seeds / (seconds() - start) / 1e3);
            real.push(seeds / clock.elapsed().as_secs_f64() / 1e3);
        }
    }
    println!(
        "{name}, {threads} threads: {} k seeds per processor second, {} k seeds per second, hits {:.1} %",
        spread(busy),
        spread(real),
        100.0 * loader.hits().rate()
    );
    Ok(())
}

/// Copies the rows of the same batches.
fn copy(graph: &Arc<Adjacency>, batches: &Batches, table: &[u8]) -> Result<(), Box<dyn Error>> {
    let features = Features::direct(Frozen::in_memory(vec![0; graph.vertices() as usize], 1)?);
    let options = Options::new(Sampling::new(&[15, 10, 5]), 0);
    let mut loader = Loader::start(graph.clone(), batches.clone(), features, options)?;
    let loaded = (0..BATCHES).map(|_| loader.next()).collect::<Result<Vec<_>, _>>()?;
    drop(loader);
    let seeds: u32 = loaded.iter().map(|batch| batch.sample().seeds).sum();
    let rows: usize = loaded.iter().map(|batch| batch.sample().vertices.len()).sum();
    let (mut speeds, mut out) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = seconds();
        for batch in &loaded {
            out.resize(batch.sample().vertices.len() * WIDTH, 0);
            for (vertex, out) in batch.sample().vertices.iter().zip(out.chunks_exact_mut(WIDTH)) {
                out.copy_from_slice(&table[*vertex as usize * WIDTH..][..WIDTH]);
            }
            black_box(&mut out);
        }
        speeds.push((rows * WIDTH) as f64 / (seconds() - start) / 1e9);
    }
    println!("{seeds} seeds have {rows} rows; a plain copy of them: {} GB/s", spread(speeds));
    Ok(())
}

/// Returns the processor time of the process.
fn seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Returns the median, with the least and the most.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let [least, median, most] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
    format!("{median:.1} ({least:.1}-{most:.1})")
}
