//! Laws of the loader.

use std::sync::Arc;

use proptest::prelude::*;
use thinwire_graph::{
    Adjacency, Batches, Contents, Position, Sample, Sampler, Sampling, Store, write,
};
use thinwire_loader::{Features, Kind, Loader, Options, Policy, Stored};
use thinwire_rows::{Error, Frozen, SLOT_BYTES, Source};

const VERTICES: u32 = 60;
const WIDTH: usize = 4;

/// Row of a vertex.
fn row(vertex: u32) -> [u8; WIDTH] {
    [vertex as u8, 1, vertex as u8 + 100, 2]
}

fn graph() -> Arc<Adjacency> {
    let edges: Vec<_> =
        (0..500_u32).map(|at| (at * at % 59, (at * 7 + at / 60) % VERTICES)).collect();
    Arc::new(Adjacency::from_edges(VERTICES, &edges).unwrap())
}

fn batches() -> Batches {
    Batches::local(vec![(0..25).collect(), vec![], (30..47).collect()], 4, 9).unwrap()
}

fn options(rank: u32) -> Options {
    Options { threads: 2, ahead: 3, ..Options::new(Sampling::new(&[3, 2]), rank) }
}

/// Row of every vertex.
fn rows() -> Frozen {
    Frozen::in_memory((0..VERTICES).flat_map(row).collect(), WIDTH).unwrap()
}

/// Loads batches, and compares each with one that is sampled and copied here.
fn assert_loads(features: Features, options: Options, count: usize) {
    let (graph, batches) = (graph(), batches());
    let mut sampler = Sampler::new(&graph, options.sampling.clone()).unwrap();
    let mut expected = Sample::new();
    let (rank, mut position) = (options.rank, options.start);
    let mut loader = Loader::start(graph.clone(), batches.clone(), features, options).unwrap();
    for _ in 0..count {
        let ready = loader.try_next().unwrap();
        let batch = ready.unwrap_or_else(|| loader.next().unwrap());
        assert_eq!(batch.position(), position);
        let pass = batches.shuffle(position.pass);
        let seeds = pass.seeds(position.step, rank);
        sampler.sample(&graph, seeds, batches.key(position, rank), &mut expected).unwrap();
        assert_eq!(batch.sample(), &expected);
        let rows = expected.vertices.iter().flat_map(|vertex| row(*vertex));
        assert!(batch.rows().iter().copied().eq(rows));
        position = batches.after(position);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn batches_depend_on_their_position_alone(
        threads in 1_usize..5, ahead in 0_u32..9, rank in 0_u32..3, pass in 0_u64..3, step in 0_u32..7,
        policy in prop_oneof![
            Just(None), Just(Some(Policy::Foreseen)),
            Just(Some(Policy::Sieve)), Just(Some(Policy::Lru))
        ],
        slots in 0_u64..100,
        own in 0..=u64::from(VERTICES),
    ) {
        let bytes = slots * (WIDTH + SLOT_BYTES) as u64;
        let source = Partly { all: rows(), own };
        let features = match policy {
            Some(policy) => Features::cached(source, bytes, policy),
            None => Features::direct(source),
        };
        let start = Position { pass, step };
        let options = Options { threads, ahead, start, ..options(rank) };
        assert_loads(features, options, 20);
    }
}

/// Rows of which the first are this process's own.
struct Partly {
    all: Frozen,
    own: u64,
}

impl Source for Partly {
    fn width(&self) -> usize {
        self.all.width()
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        self.all.read(rows, out)
    }

    fn own(&self, row: u64) -> Option<&[u8]> {
        self.all.in_memory(row).filter(|_| row < self.own)
    }
}

#[test]
fn own_rows_pass_the_cache_by() {
    let looked_up = |own| {
        let source = Partly { all: rows(), own };
        let features = Features::cached(source, 1 << 20, Policy::Foreseen);
        let mut loader = Loader::start(graph(), batches(), features, options(0)).unwrap();
        let batch = loader.next().unwrap();
        (loader.hits().ids, batch.sample().vertices.len() as u64)
    };
    let (ids, vertices) = looked_up(0);
    assert!(ids >= vertices && vertices > 0);
    assert_eq!(looked_up(u64::from(VERTICES)).0, 0);
}

/// Rows that fail to be read from the one with this number on.
struct Failing(u64);

impl Source for Failing {
    fn width(&self) -> usize {
        1
    }

    fn read(&self, rows: &[u64], _out: &mut [u8]) -> Result<(), Error> {
        match rows.iter().find(|row| **row >= self.0) {
            None => Ok(()),
            Some(row) => Err(Error::of_source(format!("row {row}"), "no answer")),
        }
    }
}

#[test]
fn a_source_that_fails_ends_the_loader_at_its_batch() {
    for features in [
        Features::direct(Failing(0)),
        Features::cached(Failing(0), 10_000, Policy::Foreseen),
        Features::cached(Failing(0), 0, Policy::Lru),
    ] {
        let start = Position { pass: 2, step: 3 };
        let options = Options { start, ..options(0) };
        let mut loader = Loader::start(graph(), batches(), features, options).unwrap();
        let error = loader.next().unwrap_err();
        assert_eq!(error.kind(), Kind::Rows);
        let text = error.to_string();
        assert!(
            text.starts_with("batch of pass 2, step 3: row ") && text.ends_with(": no answer"),
            "{text}"
        );
        assert_eq!(loader.next().unwrap_err().kind(), Kind::Ended);
    }
}

#[test]
fn batches_outlive_their_loader_and_buffers_return() {
    let features = Features::direct(rows());
    let mut loader = Loader::start(graph(), batches(), features, options(0)).unwrap();
    let batch = loader.next().unwrap();
    drop(loader);
    assert_eq!(batch.rows().len(), WIDTH * batch.sample().vertices.len());
}

#[test]
fn batches_that_are_kept_hold_up_no_later_ones() {
    let features = Features::direct(rows());
    let mut loader = Loader::start(graph(), batches(), features, options(0)).unwrap();
    let kept: Vec<_> = (0..20).map(|_| loader.next().unwrap()).collect();
    assert!(kept.windows(2).all(|pair| pair[0].position() < pair[1].position()));
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let start = |batches: Batches, features: Features, options: Options| {
        Loader::start(graph(), batches, features, options).unwrap_err().to_string()
    };
    let features = || Features::direct(rows());
    assert_eq!(start(batches(), features(), options(3)), "rank 3, expected ranks of 0..3");
    let late = Options { start: Position { pass: 0, step: 7 }, ..options(0) };
    assert_eq!(start(batches(), features(), late), "start at step 7, expected steps of 0..7");
    let unknown = Batches::global(vec![1, 60], 1, 4, 0).unwrap();
    let mut loader = Loader::start(graph(), unknown, features(), options(0)).unwrap();
    let error = loader.next().unwrap_err();
    assert_eq!(error.kind(), Kind::Sampling);
    assert!(error.to_string().ends_with("has vertex 60, expected vertices of 0..60"), "{error}");
}

#[test]
fn rows_of_a_file_are_those_that_were_written() {
    let path = std::env::temp_dir().join(format!("thinwire-stored-{}", std::process::id()));
    let graph = graph();
    let write_row = |vertex: u32, out: &mut [u8]| out.copy_from_slice(&row(vertex));
    let features = thinwire_graph::Features {
        format: "f32",
        columns: 1,
        width: WIDTH as u32,
        row: &write_row,
    };
    let bare = Contents::new(&graph);
    write(&path, &bare).unwrap();
    assert!(Stored::new(Arc::new(Store::open(&path).unwrap())).is_none());
    write(&path, &Contents { features: Some(features), ..bare }).unwrap();
    let stored = Stored::new(Arc::new(Store::open(&path).unwrap())).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_loads(Features::direct(stored.clone()), options(2), 20);
    assert_eq!(stored.in_memory(7), Some(&row(7)[..]));
    assert_eq!(stored.in_memory(60), None);
    let refused =
        |rows: &[u64], bytes| stored.read(rows, &mut vec![0; bytes]).unwrap_err().to_string();
    assert_eq!(refused(&[60], WIDTH), "row 60, expected rows of 0..60: no such row");
    assert_eq!(refused(&[1], 2), "2 bytes for 1 rows of 4: expected room for all rows");
}
