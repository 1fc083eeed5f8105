//! Hit rates of caches of feature rows: every policy beside the rows of highest degree, the best static content
//! and Belady's bound.
//!
//! A cache of 1, 5, 10, 20 and 40 % of the rows. Static caches are filled in advance, the others start empty. The graph is R-MAT, or read from a file.
//!
//! `cargo run --release -p thinwire-loader --example hits -- cnr-2000.graph-txt.gz`; behind a file of `indptr` and
//! `indices` that does not say whose lists these are, `in` or `out`.

use std::error::Error;
use std::path::Path;

use thinwire_graph::generate::Rmat;
use thinwire_graph::read::{self, Format};
use thinwire_graph::{Adjacency, Batches, Position, Sample, Sampler, Sampling};
use thinwire_rows::{
    Cache, Foreseen, Lookup, Lru, Policy, SLOT_BYTES, Sieve, Start, Trace, belady, by_frequency,
};
use thinwire_wire::random::{Key, permutation};

const PERCENT: [u32; 5] = [1, 5, 10, 20, 40];
/// Least number of batches that are measured, in whole passes.
const MEASURED: u32 = 96;
/// First pass that is measured, as in the tables of docs/graphs-loading.md.
const FIRST: u64 = 8;
const BATCH: u32 = 1024;
/// Fan-outs, and one of how many vertices is a training vertex.
const CONFIGURATIONS: [(&[u32], u32); 3] =
    [(&[25, 10], 10), (&[15, 10, 5], 10), (&[15, 10, 5], 100)];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1);
    let (name, graph) = match &path {
        Some(path) => {
            let path = Path::new(path);
            let orientation = std::env::args().nth(2).map(|text| text.parse()).transpose()?;
            let options = read::Options { orientation, ..read::Options::default() };
            let edges = read::edges(path, Format::of(path)?, options)?;
            (path.display().to_string(), edges.adjacency()?)
        }
        None => {
            let chances = Rmat::GRAPH500;
            ("R-MAT".to_owned(), Rmat { scale: 20, degree: 16, chances, seed: 4 }.graph()?)
        }
    };
    println!("{name}: {} vertices, {} edges", graph.vertices(), graph.edges());
    CONFIGURATIONS.iter().try_for_each(|(fan_outs, one_of)| compare(&graph, fan_outs, *one_of))
}

fn compare(graph: &Adjacency, fan_outs: &[u32], one_of: u32) -> Result<(), Box<dyn Error>> {
    let vertices = graph.vertices();
    let mut training = permutation(Key { seed: 2, step: 0, tensor: 0 }, vertices);
    training.truncate((vertices / one_of) as usize);
    let batches = Batches::global(training, 1, BATCH, 1)?;
    let sampling = Sampling::new(fan_outs);
    let trace = trace(graph, &sampling, &batches)?;
    println!(
        "\nfan-outs {fan_outs:?}, {} batches a pass of up to {BATCH} seeds, {} accesses in {} batches",
        batches.steps(),
        trace.accesses(),
        trace.batches().len()
    );
    println!("{:<24}{}", "% of rows", PERCENT.map(|percent| format!("{percent:>8}")).concat());
    let optimum = by_frequency(&trace);
    let mut uses = vec![0; vertices as usize];
    optimum.iter().for_each(|(row, count)| uses[*row as usize] = *count);
    let best_first = by_degree(graph);
    print("degree", &trace, vertices, |slots| {
        best_first[..slots].iter().map(|vertex| uses[*vertex as usize]).sum()
    });
    print("static optimum", &trace, vertices, |slots| {
        optimum.iter().take(slots).map(|(_, count)| count).sum()
    });
    print("LRU", &trace, vertices, |slots| simulate(&trace, slots, Lru::new));
    print("SIEVE", &trace, vertices, |slots| simulate(&trace, slots, Sieve::new));
    for ahead in [4, 16, 32, 64] {
        print(&format!("foreseen, {ahead} ahead"), &trace, vertices, |slots| {
            foresee(&trace, slots, ahead)
        });
    }
    print("foreseen, all ahead", &trace, vertices, |slots| {
        foresee(&trace, slots, trace.batches().len())
    });
    print("Belady", &trace, vertices, |slots| belady(&trace, slots, Start::Cold));
    Ok(())
}

/// Returns the accesses of whole passes.
fn trace(
    graph: &Adjacency,
    sampling: &Sampling,
    batches: &Batches,
) -> Result<Trace, Box<dyn Error>> {
    let (mut trace, mut sample) = (Trace::new(), Sample::new());
    let mut sampler = Sampler::new(graph, sampling.clone())?;
    let passes = u64::from(MEASURED.div_ceil(batches.steps()));
    for number in FIRST..FIRST + passes {
        let pass = batches.shuffle(number);
        for step in 0..batches.steps() {
            let key = batches.key(Position { pass: number, step }, 0);
            sampler.sample(graph, pass.seeds(step, 0), key, &mut sample)?;
            trace.push(&sample.vertices.iter().map(|v| u64::from(*v)).collect::<Vec<_>>());
        }
    }
    Ok(trace)
}

/// Returns the vertices by their out-degree, the highest first: PaGraph's content (Lin et al., SoCC 2020).
fn by_degree(graph: &Adjacency) -> Vec<u32> {
    let mut degrees = vec![0_u32; graph.vertices() as usize];
    graph.pairs().for_each(|(source, _)| degrees[source as usize] += 1);
    let mut vertices: Vec<u32> = (0..graph.vertices()).collect();
    vertices.sort_by_key(|vertex| std::cmp::Reverse(degrees[*vertex as usize]));
    vertices
}

fn slots(vertices: u32, percent: u32) -> u32 {
    (u64::from(vertices) * u64::from(percent) / 100) as u32
}

/// Prints the hit rates for every size of the cache, given the hits for a number of slots.
fn print(name: &str, trace: &Trace, vertices: u32, hits: impl Fn(usize) -> u64) {
    let rates = PERCENT.map(|percent| {
        let hits = hits(slots(vertices, percent) as usize);
        format!("{:>8.1}", 100.0 * hits as f64 / trace.accesses() as f64)
    });
    println!("{name:<24}{}", rates.concat());
}

/// Returns the hits of a cache that starts empty.
fn simulate<P: Policy>(trace: &Trace, slots: usize, policy: impl FnOnce(u32) -> P) -> u64 {
    run(trace, slots, policy, |_| {})
}

/// Returns the hits of a cache that is told so many batches beyond the current one.
fn foresee(trace: &Trace, slots: usize, ahead: usize) -> u64 {
    let mut untold = trace.batches();
    run(
        trace,
        slots,
        |slots| Foreseen::new(slots, ahead as u32 + 1),
        |cache| {
            while cache.policy_mut().batches_ahead() <= ahead {
                match untold.next() {
                    Some(batch) => _ = cache.policy_mut().tell(batch),
                    None => return,
                }
            }
        },
    )
}

fn run<P: Policy>(
    trace: &Trace,
    slots: usize,
    policy: impl FnOnce(u32) -> P,
    mut before: impl FnMut(&mut Cache<P>),
) -> u64 {
    let mut cache = Cache::new(1, (slots * (1 + SLOT_BYTES)) as u64, policy);
    let (mut lookup, mut out, values) = (Lookup::new(), Vec::new(), vec![0; trace.accesses()]);
    for batch in trace.batches() {
        before(&mut cache);
        out.resize(batch.len(), 0);
        cache.begin(batch, 0, &mut lookup, &mut out).expect("lengths fit");
        let missing = lookup.missing().len();
        cache.finish(&mut lookup, &values[..missing], 0, &mut out).expect("lengths fit");
    }
    cache.hits().hits
}
