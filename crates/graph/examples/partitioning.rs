//! Compares partitioners on a graph in a file: balance, cut, redundancy and remote rows.
//!
//!     cargo run --release --features metis --example partitioning -- FILE PARTS HOPS SHARE [METHOD] [in|out]
//!
//! SHARE is the share of vertices, drawn at random, that are trained on; `in` or `out` says whose lists `indptr`
//! and `indices` are.

use std::path::Path;
use std::time::Instant;

use thinwire_graph::partition::{Method, Options, Report, partition};
use thinwire_graph::read::{self, Format, Orientation};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, parts, hops, share] = words.first_chunk().ok_or("FILE PARTS HOPS SHARE")?;
    let path = Path::new(file);
    let orientation = words.iter().skip(4).find_map(|word| word.parse().ok());
    let said = read::Options { orientation, ..read::Options::default() };
    let graph = read::edges(path, Format::of(path)?, said)?.adjacency()?;
    let share: f32 = share.parse()?;
    let key = thinwire_wire::random::Key { seed: 1, step: 0, tensor: 0 };
    let is_training = |vertex: &u32| key.uniform(u64::from(*vertex)) < share;
    let training: Vec<u32> = (0..graph.vertices()).filter(is_training).collect();
    let (parts, hops) = (parts.parse()?, hops.parse()?);
    let options = Options { parts, hops, balance_max: 1.02, seed: 1 };
    println!("{} vertices, {} edges, {} training", graph.vertices(), graph.edges(), training.len());
    println!("method  redundancy  train  vertices  closures  cut  remote  seconds");
    for method in Method::all() {
        let mut named = words.iter().skip(4).filter(|word| word.parse::<Orientation>().is_err());
        if named.next().is_some_and(|only| *only != method.to_string()) {
            continue;
        }
        let start = Instant::now();
        let made = partition(&graph, &training, method, &options)?;
        let seconds = start.elapsed().as_secs_f64();
        let report = Report::new(&graph, &training, &made, hops);
        println!(
            "{method:7} {:.4} {:.4} {:.3} {:.3} {} {} {seconds:.2}",
            report.redundancy(),
            report.training_balance(),
            report.vertex_balance(),
            report.closure_balance(),
            report.cut,
            report.remote,
        );
    }
    Ok(())
}
