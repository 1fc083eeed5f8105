//! Job in one process.

use std::time::Duration;

use thinwire_job::Settings;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Job, JobAddress, Options, Presence, Servers,
};
use thinwire_server::{Client, Configuration, Definition, Gradient, Server, TableDefinition};

/// Time limit of every wait.
pub const LONG: Duration = Duration::from_secs(300);
pub const TOKEN: &str = "secret";
pub const SHARDS: u32 = 6;
pub const ROWS: u64 = 100;
pub const WIDTH: usize = 3;

fn options(min: u32) -> Options {
    // Longer than usual: the machine may do more than these tests.
    let silence = Duration::from_secs(8);
    Options { silence, ..Options::new(CoordinatorMode::Saved, min, 8) }
}

/// Starts a coordinator whose epochs have at least this many workers.
pub fn coordinator(workers: u32) -> Coordinator {
    let servers = Some(Servers::new(options(1), Configuration::new));
    let job = Job { workers: options(workers), servers };
    Coordinator::bind("127.0.0.1:0", TOKEN, job, None, |_| {}).unwrap()
}

pub fn servers(coordinator: &Coordinator, count: usize) -> Vec<Server> {
    let server = |_| {
        let job_address = JobAddress::server(coordinator.address(), TOKEN).unwrap();
        Server::start(&job_address, "127.0.0.1:0", &Settings::default()).unwrap()
    };
    (0..count).map(server).collect()
}

/// Returns the definition of one table of zeros, for a job that begins with two servers.
pub fn definition(consistency: &str, optimizer: &str, backups: u32) -> Definition {
    let table = TableDefinition {
        name: "rows".to_owned(),
        rows: ROWS,
        width: WIDTH as u32,
        optimizer: optimizer.to_owned(),
        initial: "zeros".to_owned(),
        seed: 1,
        stream: 0,
        values: "f32".to_owned(),
    };
    let consistency = consistency.to_owned();
    Definition {
        tables: vec![table],
        consistency,
        shards: SHARDS,
        backups,
        servers: 2,
        restore: None,
    }
}

/// Worker that is in the job until it is dropped.
pub struct Worker {
    pub job_address: JobAddress,
    _presence: Presence,
}

/// Returns workers in one epoch, in the order of their ids.
pub fn workers(coordinator: &Coordinator, count: usize) -> Vec<Worker> {
    let worker = |_| {
        let job_address = JobAddress::new(coordinator.address(), TOKEN).unwrap();
        let settings = Settings::default();
        let presence = Presence::join(&job_address, &settings, options(1), Vec::new()).unwrap();
        Worker { job_address, _presence: presence }
    };
    let mut workers: Vec<Worker> = (0..count).map(worker).collect();
    workers.sort_by_key(|worker| worker.job_address.id);
    for worker in &workers {
        worker._presence.wait(0, LONG).expect("an epoch");
    }
    workers
}

impl Worker {
    /// Adds one to every value.
    pub fn push_ones(&self, client: &mut Client) {
        let rows: Vec<u64> = (0..ROWS).collect();
        let values = vec![-1.0; rows.len() * WIDTH];
        client.push(&[Gradient { table: 0, rows: &rows, values: &values }]).unwrap();
    }
}
