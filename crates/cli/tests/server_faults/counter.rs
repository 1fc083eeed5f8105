//! Counting processes: a worker pushes ones, and a reader reads how often each row was pushed to.
//!
//! Both are this test program, started with an environment variable, and report on standard output.

use std::time::{Duration, Instant};

use thinwire_job::elastic::{CoordinatorMode, JobAddress, Options, Presence};
use thinwire_job::{Overrides, Settings};
use thinwire_server::{Client, Definition, Gradient, Reader, TableDefinition};

/// Pushes of each worker.
pub const PUSHES: u32 = 400;
/// Secret of the job.
pub const TOKEN: &str = "the secret of counted pushes";
/// Environment variable with the task of a process: `push SERVERS BACKUPS` or `read ADDRESS`.
pub const VARIABLE: &str = "THINWIRE_COUNTER";
/// First word of the line after each push; the push's time in microseconds follows.
pub const PUSHED: &str = "pushed";
/// First word of the line with all counts.
pub const COUNTS: &str = "counts";

const ROWS: u64 = 64;
const WIDTH: usize = 4;
/// Longest time without an answer.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Does what the variable says; nothing if it is not set.
pub fn run() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    match task.split(' ').collect::<Vec<_>>()[..] {
        ["push", servers, backups] => push(servers.parse().unwrap(), backups.parse().unwrap()),
        ["read", address] => read(address),
        _ => panic!("unknown task {task:?}"),
    }
}

fn definition(servers: u32, backups: u32) -> Definition {
    let table = TableDefinition {
        name: "counts".to_owned(),
        rows: ROWS,
        width: WIDTH as u32,
        // Minus one per push, exactly.
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
        values: "f32".to_owned(),
    };
    Definition {
        tables: vec![table],
        consistency: "async".to_owned(),
        shards: 8,
        backups,
        servers,
        restore: None,
    }
}

fn push(servers: u32, backups: u32) {
    let given = Overrides::default();
    let job_address = thinwire_job::elastic::job_address(&given, &thinwire_job::process).unwrap();
    let job_address: JobAddress = job_address.expect("the seat of this process");
    let options = Options::new(CoordinatorMode::Saved, 1, 2);
    let presence = Presence::join(&job_address, &Settings::default(), options, Vec::new()).unwrap();
    let mut client = Client::open(&job_address, &definition(servers, backups), TIMEOUT).unwrap();
    let (rows, values) = ((0..ROWS).collect::<Vec<_>>(), [1.0; WIDTH * ROWS as usize]);
    let gradient = Gradient { table: 0, rows: &rows, values: &values };
    for _ in 0..PUSHES {
        let pushed = Instant::now();
        client.push(&[gradient]).unwrap();
        println!("{PUSHED} {}", pushed.elapsed().as_micros());
    }
    presence.leave();
}

fn read(address: &str) {
    let mut reader = Reader::open(address, TOKEN, TIMEOUT).unwrap();
    let counts = reader.pull_all(0).unwrap();
    let words: Vec<String> = counts.iter().map(|count| (-count).to_string()).collect();
    println!("{COUNTS} {}", words.join(" "));
}
