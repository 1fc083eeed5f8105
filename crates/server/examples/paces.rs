//! Throughput of a parameter server with workers of different speeds, in one process over loopback.
//!
//! In each step a worker computes (here it sleeps), pushes, and pulls a small table. Throughput is the number
//! of steps per second of all workers together. Either one worker is always four times as slow as the others,
//! or each worker in turn is for two steps. The throughput of the fast workers alone is the baseline.
//!
//! `cargo run --release -p thinwire-server --example paces -- [SECONDS]`

use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use thinwire_job::Settings;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Job, JobAddress, Options, Presence, Servers,
};
use thinwire_server::{Client, Configuration, Definition, Gradient, Server, TableDefinition};

const TOKEN: &str = "paces";
const WORKERS: usize = 4;
const ROWS: u64 = 64;
const WIDTH: u32 = 64;
const COMPUTING: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Worker that is slow.
#[derive(Clone, Copy)]
enum Slow {
    Nobody,
    /// The last worker, always.
    Last,
    /// Each worker in turn.
    InTurn,
}

impl Slow {
    fn computing(self, worker: usize, step: usize) -> Duration {
        let is_slow = match self {
            Slow::Nobody => false,
            Slow::Last => worker == WORKERS - 1,
            Slow::InTurn => step / 2 % WORKERS == worker,
        };
        if is_slow { 4 * COMPUTING } else { COMPUTING }
    }
}

fn main() -> Outcome<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let length = Duration::from_secs(seconds);
    println!(
        "| consistency | 3 fast workers, steps/s | and one slow | ratio | 4 fast workers | each slow in turn | ratio |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for consistency in ["sync", "bounded:4", "async"] {
        let rate = |workers, slow| throughput(consistency, (workers, slow), length);
        let (three, mixed) = (rate(WORKERS - 1, Slow::Nobody)?, rate(WORKERS, Slow::Last)?);
        let (four, turns) = (rate(WORKERS, Slow::Nobody)?, rate(WORKERS, Slow::InTurn)?);
        let ratios = [mixed / three, turns / four];
        println!(
            "| {consistency} | {three:.1} | {mixed:.1} | {:.2} | {four:.1} | {turns:.1} | {:.2} |",
            ratios[0], ratios[1]
        );
    }
    Ok(())
}

/// Returns the steps per second of all workers together.
fn throughput(consistency: &str, (workers, slow): (usize, Slow), length: Duration) -> Outcome<f64> {
    let options = |min| Options::new(CoordinatorMode::Saved, min, 8);
    let servers = Some(Servers::new(options(1), Configuration::new));
    let job = Job { workers: options(workers as u32), servers };
    let coordinator = Coordinator::bind("127.0.0.1:0", TOKEN, job, None, |_| {})?;
    let job_address = JobAddress::server(coordinator.address(), TOKEN)?;
    let _server = Server::start(&job_address, "127.0.0.1:0", &Settings::default())?;
    let (begin, address) = (Barrier::new(workers), coordinator.address());
    let train = |worker| train(&address, consistency, (worker, slow), (&begin, length));
    let steps = thread::scope(|scope| {
        let threads = (0..workers).map(|worker| {
            scope.spawn({
                let train = &train;
                move || train(worker)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<Outcome<usize>>()
    });
    Ok(steps? as f64 / length.as_secs_f64())
}

/// Trains for `length` and returns the number of steps.
fn train(
    address: &str,
    consistency: &str,
    (worker, slow): (usize, Slow),
    (begin, length): (&Barrier, Duration),
) -> Outcome<usize> {
    let job_address = JobAddress::new(address, TOKEN)?;
    let options = Options::new(CoordinatorMode::Saved, 1, 8);
    let presence = Presence::join(&job_address, &Settings::default(), options, Vec::new())?;
    let mut client = Client::open(&job_address, &definition(consistency), TIMEOUT)?;
    presence.wait(0, TIMEOUT).ok_or("no epoch")?;
    let rows: Vec<u64> = (0..ROWS).collect();
    let mut values = vec![1.0; rows.len() * WIDTH as usize];
    begin.wait();
    let begun = Instant::now();
    let mut steps = 0;
    while begun.elapsed() < length {
        thread::sleep(slow.computing(worker, steps));
        client.push(&[Gradient { table: 0, rows: &rows, values: &values }])?;
        client.pull(&[(0, &rows)], &mut values)?;
        steps += 1;
    }
    Ok(steps)
}

fn definition(consistency: &str) -> Definition {
    let table = TableDefinition {
        name: "rows".to_owned(),
        rows: ROWS,
        width: WIDTH,
        optimizer: "sgd:lr=0.001".to_owned(),
        initial: "zeros".to_owned(),
        seed: 1,
        stream: 0,
        values: "f32".to_owned(),
    };
    let consistency = consistency.to_owned();
    Definition {
        tables: vec![table],
        consistency,
        shards: 4,
        backups: 0,
        servers: 1,
        restore: None,
    }
}
