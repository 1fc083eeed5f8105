//! Laws of the rows that are predicted.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use thinwire_graph::partition::Parts;
use thinwire_graph::{Adjacency, Batches, Position, Sample, Sampler, Sampling};
use thinwire_loader::{Demand, Features, Loader, Options, Policy};
use thinwire_rows::{Error, SLOT_BYTES, Source};

const VERTICES: u32 = 60;

fn graph() -> Arc<Adjacency> {
    let edges: Vec<_> =
        (0..500_u32).map(|at| (at * at % 59, (at * 7 + at / 60) % VERTICES)).collect();
    Arc::new(Adjacency::from_edges(VERTICES, &edges).unwrap())
}

fn parts() -> Arc<Parts> {
    Arc::new(Parts::new(3, (0..VERTICES).map(|vertex| (vertex / 20) as u16).collect()).unwrap())
}

fn batches(seed: u64) -> Batches {
    Batches::local(vec![(0..17).collect(), (20..25).collect(), (40..60).collect()], 4, seed)
        .unwrap()
}

/// Rows of other parts in every batch of a rank, by sampling each alone.
fn sampled(sampling: &Sampling, batches: &Batches, rank: u32, passes: u64) -> Vec<Vec<u32>> {
    let (graph, parts) = (graph(), parts());
    let mut sampler = Sampler::new(&graph, sampling.clone()).unwrap();
    let (mut position, mut found, mut sample) = (Position::default(), Vec::new(), Sample::new());
    while position.pass < passes {
        let pass = batches.shuffle(position.pass);
        let seeds = pass.seeds(position.step, rank);
        sampler.sample(&graph, seeds, batches.key(position, rank), &mut sample).unwrap();
        let remote = sample.vertices.iter().copied().filter(|vertex| parts.of(*vertex) != rank);
        found.push(remote.collect());
        position = batches.after(position);
    }
    found
}

/// Rows of three bytes; those of other parts are counted.
struct Counted {
    rank: u32,
    remote: AtomicU64,
}

impl Source for Counted {
    fn width(&self) -> usize {
        3
    }

    fn read(&self, rows: &[u64], _: &mut [u8]) -> Result<(), Error> {
        let remote = rows.iter().filter(|row| parts().of(**row as u32) != self.rank).count();
        self.remote.fetch_add(remote as u64, Ordering::Relaxed);
        Ok(())
    }

    fn own(&self, row: u64) -> Option<&[u8]> {
        (parts().of(row as u32) == self.rank).then_some(&[0; 3])
    }
}

/// Rows that a loader has requested once it has given the batches of some passes.
fn loaded(demand: &Demand, batches: &Batches, rank: u32) -> u64 {
    let source = Arc::new(Counted { rank, remote: AtomicU64::new(0) });
    let bytes = demand.cached * (3 + SLOT_BYTES as u64);
    let features = Features::cached(source.clone(), bytes, Policy::Foreseen);
    let options =
        Options { ahead: demand.ahead, threads: 2, ..Options::new(demand.sampling.clone(), rank) };
    let mut loader = Loader::start(graph(), batches.clone(), features, options).unwrap();
    for _ in 0..demand.passes * u64::from(batches.steps()) {
        loader.next().unwrap();
    }
    source.remote.load(Ordering::Relaxed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_predicted_is_what_a_loader_requests(
        rank in 0_u32..3, seed: u64, passes in 1_u64..4, cached in 1_u64..70, ahead in 0_u32..9
    ) {
        let sampling = Sampling::new(&[3, 2]);
        let batches = batches(seed);
        let predict = |passes, cached| {
            let demand = Demand { sampling: sampling.clone(), passes, cached, ahead };
            demand.rows(&graph(), &batches, &parts(), rank).unwrap()
        };
        let all = sampled(&sampling, &batches, rank, passes);
        let distinct: HashSet<u32> = all.iter().flatten().copied().collect();
        prop_assert_eq!(predict(passes, 0), all.iter().map(Vec::len).sum::<usize>() as u64);
        prop_assert_eq!(predict(passes, u64::from(VERTICES)), distinct.len() as u64);
        // A loader is a few batches further than what it has given, and less than a pass.
        let demand = Demand { sampling: sampling.clone(), passes, cached, ahead };
        let found = loaded(&demand, &batches, rank);
        prop_assert!((predict(passes, cached)..=predict(passes + 1, cached)).contains(&found));
    }
}
