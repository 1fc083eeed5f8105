//! Times all-reduces between threads over TCP on loopback.
//!
//! `cargo run --release -p thinwire-collective --example loopback -- RANKS MIB RUNS [ALGORITHM]`

use std::time::Instant;

use thinwire_collective::{Group, Options, all_reduce, barrier};
use thinwire_link::{Token, store, tcp};
use thinwire_wire::World;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        |default: f64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (ranks, mib, runs) = (number(2.0) as u32, number(1.0), number(20.0) as usize);
    let algorithm = std::env::args().nth(4).map_or("two-shot".to_owned(), |name| name);
    let partitions = std::env::args().nth(5).and_then(|text| text.parse().ok());
    let options = Options { algorithm: algorithm.parse().ok(), partitions, ..Options::default() };
    let store = store::mem::Mem::new();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (store, options, algorithm) = (&store, &options, &algorithm);
            scope.spawn(move || {
                let link_options = tcp::Options::new(Token::new("benchmark"));
                let link =
                    tcp::connect(World::new(rank, ranks).unwrap(), store, &link_options).unwrap();
                let mut group = Group::new(link);
                let mut values = vec![1.0; (mib * 262_144.0) as usize];
                let mut times = Vec::new();
                for run in 0..runs + 3 {
                    barrier(&mut group).unwrap();
                    let begin = Instant::now();
                    all_reduce(&mut group, &mut values, options).unwrap();
                    if run >= 3 {
                        times.push(begin.elapsed().as_secs_f64());
                    }
                    values.fill(1.0);
                }
                times.sort_by(f64::total_cmp);
                if rank == 0 {
                    let median = times[times.len() / 2];
                    let bus = mib * 1048576.0 * 2.0 * f64::from(ranks - 1)
                        / f64::from(ranks)
                        / median
                        / 1e6;
                    println!(
                        "{ranks} ranks, {mib} MiB, {algorithm}: {:.3} ms, bus {bus:.0} MB/s",
                        median * 1e3
                    );
                }
            });
        }
    });
}
