//! Laws of clients over loopback, with coordinator, servers and workers in one process.
//!
//! Where a test counts pushes, gradients are whole numbers and the optimiser is `sgd:lr=1`, so that values
//! show how often a push was applied.

mod failures;
mod job;

use std::thread;

use thinwire_member::Id;
use thinwire_server::{Caching, Client, Gradient, Piece, Pull, Reader, Tables};

use job::{LONG, ROWS, TOKEN, WIDTH, Worker, coordinator, definition, servers, workers};

/// Returns a gradient whose sums depend on the order of addition.
fn fraction(worker: usize, step: usize, at: usize) -> f32 {
    (0.1 + 0.37 * worker as f32 + 0.011 * step as f32) / (1.0 + at as f32)
}

/// Returns the rows of a worker's step: one of them twice, and one that only this worker uses.
fn touched(worker: usize, step: usize) -> Vec<u64> {
    [5, 90, 2, 5, 61 + worker].map(|row| (row + 3 * step) as u64 % ROWS).to_vec()
}

fn gradient(worker: usize, step: usize) -> (Vec<u64>, Vec<f32>) {
    let rows = touched(worker, step);
    let values = (0..rows.len() * WIDTH).map(|at| fraction(worker, step, at)).collect();
    (rows, values)
}

/// Applies a step of all workers by plain summation: first over repeated rows of a worker, then over workers
/// by id.
fn plain(values: &mut [f32], step: usize, workers: usize) {
    let mut sums = vec![None::<Vec<f32>>; ROWS as usize];
    for worker in 0..workers {
        let mut own = vec![None::<Vec<f32>>; ROWS as usize];
        let (rows, gradient) = gradient(worker, step);
        for (row, part) in rows.iter().zip(gradient.chunks(WIDTH)) {
            add(&mut own[*row as usize], part);
        }
        for (sum, own) in sums.iter_mut().zip(own) {
            own.iter().for_each(|own| add(sum, own));
        }
    }
    for (row, sum) in sums.iter().enumerate() {
        let row = &mut values[row * WIDTH..][..WIDTH];
        sum.iter().for_each(|sum| row.iter_mut().zip(sum).for_each(|(v, g)| *v -= 0.5 * g));
    }
}

fn add(sum: &mut Option<Vec<f32>>, part: &[f32]) {
    match sum {
        None => *sum = Some(part.to_vec()),
        Some(sum) => sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value),
    }
}

#[test]
fn sync_is_the_plain_sum_bit_for_bit() {
    let coordinator = coordinator(3);
    let _servers = servers(&coordinator, 3);
    let definition = definition("sync", "sgd:lr=0.5", 1);
    let found = workers(&coordinator, 3).into_iter().enumerate().map(|(worker, it)| {
        let definition = definition.clone();
        thread::spawn(move || {
            let mut client = Client::open(&it.job_address, &definition, LONG).unwrap();
            for step in 0..12 {
                let (rows, values) = gradient(worker, step);
                client.push(&[Gradient { table: 0, rows: &rows, values: &values }]).unwrap();
                let mut out = vec![0.0; rows.len() * WIDTH];
                client.pull(&[(0, &rows)], &mut out).unwrap();
                assert_eq!(out[..WIDTH], out[3 * WIDTH..4 * WIDTH], "one row twice");
            }
            client.pull_all(0).unwrap()
        })
    });
    let found: Vec<Vec<f32>> =
        found.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect();
    let mut expected = vec![0.0; ROWS as usize * WIDTH];
    (0..12).for_each(|step| plain(&mut expected, step, 3));
    assert!(expected.iter().any(|value| *value != 0.0));
    assert!(found.iter().all(|found| *found == expected));
}

#[test]
fn bounded_and_async_count_every_push_once() {
    for consistency in ["bounded:2", "async"] {
        let coordinator = coordinator(2);
        let _servers = servers(&coordinator, 2);
        let definition = definition(consistency, "sgd:lr=1", 1);
        let threads = workers(&coordinator, 2).into_iter().map(|it| {
            let definition = definition.clone();
            thread::spawn(move || {
                let mut client = Client::open(&it.job_address, &definition, LONG).unwrap();
                for step in 1..=20 {
                    it.push_ones(&mut client);
                    // The worker's own pushes are always visible.
                    let mut out = vec![0.0; WIDTH];
                    client.pull(&[(0, &[17])], &mut out).unwrap();
                    assert!(out[0] >= step as f32, "{consistency}: {out:?} after {step}");
                }
                it
            })
        });
        let _stay: Vec<Worker> =
            threads.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect();
        let mut reader = Reader::open(&coordinator.address(), TOKEN, LONG).unwrap();
        let values = reader.pull_all(reader.table("rows").unwrap()).unwrap();
        assert!(values.iter().all(|value| *value == 40.0), "{consistency}: {values:?}");
    }
}

#[test]
fn large_pulls_and_pushes_are_whole() {
    let coordinator = coordinator(1);
    let _servers = servers(&coordinator, 2);
    let mut definition = definition("async", "sgd:lr=1", 0);
    (definition.tables[0].rows, definition.tables[0].width) = (100_003, 48);
    definition.tables[0].initial = "uniform:0.5".to_owned();
    let worker = workers(&coordinator, 1).remove(0);
    let mut client = Client::open(&worker.job_address, &definition, LONG).unwrap();

    let layout = definition.layout().unwrap();
    let mut tables = Tables::new(&[Piece { table: 0, rows: 0..100_003 }], &layout.tables);
    let rows = vec![(0, (0..100_003).collect())];
    let expected = tables.read(&Pull { client: Id(1), request: 1, after: 0, rows }).unwrap();
    assert!(client.pull_all(0).unwrap() == expected, "18 MiB of initial values");

    let rows: Vec<u64> = (0..100_003).rev().collect();
    let values: Vec<f32> = rows.iter().flat_map(|row| [*row as f32; 48]).collect();
    client.push(&[Gradient { table: 0, rows: &rows, values: &values }]).unwrap();
    let mut out = vec![0.0; values.len()];
    drop(client.begin_pull(&[(0, &rows)]).unwrap());
    let pulling = client.begin_pull(&[(0, &rows)]).unwrap();
    client.finish_pull(pulling, &mut out).unwrap();
    for (row, values) in (0..100_003).rev().zip(out.chunks(48)) {
        let first = &expected[row * 48..][..48];
        assert!(values.iter().zip(first).all(|(x, first)| *x == first - row as f32), "row {row}");
    }
}

#[test]
fn a_cache_gives_rows_that_others_have_changed_for_some_steps_and_own_pushes_at_once() {
    let coordinator = coordinator(2);
    let _servers = servers(&coordinator, 2);
    let definition = definition("async", "sgd:lr=1", 1);
    let workers = workers(&coordinator, 2);
    let open = |worker: &Worker| Client::open(&worker.job_address, &definition, LONG).unwrap();
    let (mut one, mut other) = (open(&workers[0]), open(&workers[1]));
    one.cache(0, Caching { bytes_max: 1 << 20, staleness: 2 }).unwrap();
    let mut look = |one: &mut Client| {
        let mut out = vec![0.0; 3 * WIDTH];
        one.pull(&[(0, &[7, 8, 7])], &mut out).unwrap();
        workers[1].push_ones(&mut other);
        [out[0], out[WIDTH], out[2 * WIDTH]]
    };
    let ones = vec![-1.0; WIDTH];
    let step = |one: &mut Client| {
        one.push(&[Gradient { table: 0, rows: &[8], values: &ones }]).unwrap();
    };
    assert_eq!(look(&mut one), [0.0; 3]);
    assert_eq!(look(&mut one), [0.0; 3], "both are kept");
    step(&mut one);
    assert_eq!(look(&mut one), [0.0, 3.0, 0.0], "its own push, and two of the other worker");
    step(&mut one);
    step(&mut one);
    assert_eq!(look(&mut one), [3.0, 6.0, 3.0], "the first is three steps old");
    let hits = one.hits(0).unwrap();
    assert_eq!((hits.lookups, hits.hits, hits.misses), (4, 3, 5));
    assert_eq!(other.hits(0), None);
}

#[test]
fn values_travel_rounded_and_replicas_stay_equal() {
    for (format, consistency) in
        [("f16", "sync"), ("int8", "sync"), ("f16", "async"), ("int8", "async")]
    {
        let coordinator = coordinator(2);
        let mut servers = servers(&coordinator, 2);
        let mut definition = definition(consistency, "sgd:lr=1", 1);
        definition.tables[0].values = format.to_owned();
        let threads = workers(&coordinator, 2).into_iter().map(|it| {
            let definition = definition.clone();
            thread::spawn(move || {
                let mut client = Client::open(&it.job_address, &definition, LONG).unwrap();
                let rows: Vec<u64> = (0..ROWS).collect();
                let values: Vec<f32> =
                    (0..rows.len() * WIDTH).map(|at| -0.01 * (at % 7) as f32).collect();
                for _ in 0..50 {
                    client.push(&[Gradient { table: 0, rows: &rows, values: &values }]).unwrap();
                }
                it
            })
        });
        let _stay: Vec<Worker> =
            threads.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect();
        let mut reader = Reader::open(&coordinator.address(), TOKEN, LONG).unwrap();
        let values = reader.pull_all(0).unwrap();
        for (at, value) in values.iter().enumerate() {
            let error = (value - 100.0 * 0.01 * (at % 7) as f32).abs();
            assert!(error < 0.1, "{format} {consistency}: {value} at {at}");
        }
        // The backup gives bit-equal answers.
        servers.pop();
        assert_eq!(reader.pull_all(0).unwrap(), values, "{format} {consistency}");
    }
}
