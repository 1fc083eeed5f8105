//! Speed of a parameter server over a network, with one process per rank: workers first, then servers.
//!
//! `dense`: each worker pushes the gradient of a table and pulls the table, under `sync`. `sparse`: one
//! worker pulls random rows, and gathers as many from a local hash map for comparison. Rank 0 also runs the
//! coordinator, and prints a JSON line per measurement. Servers end when the coordinator does.
//! `bench/server.sh` starts all ranks.
//!
//! `RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 wire dense WORKERS SERVERS BACKUPS FORMAT BYTES RUNS`

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thinwire_job::Settings;
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Job, JobAddress, Options, Presence, Servers,
};
use thinwire_server::{Client, Configuration, Definition, Gradient, Server, TableDefinition};
use thinwire_wire::random::Key;

const LONG: Duration = Duration::from_secs(120);
const DENSE_WIDTH: u32 = 1024;
const SPARSE_WIDTH: u32 = 64;
const SPARSE_ROWS: u64 = 1_000_000;

type Outcome = Result<(), Box<dyn Error>>;

/// Benchmark, from the command line and the environment.
struct Bench {
    rank: u32,
    place: String,
    token: String,
    workers: u32,
    servers: u32,
    backups: u32,
    format: String,
    bytes: usize,
    runs: usize,
}

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, workers, servers, backups, format, bytes, runs] = &words[..] else {
        return Err("usage: wire dense|sparse WORKERS SERVERS BACKUPS FORMAT BYTES RUNS".into());
    };
    let variable = |name| std::env::var(name).map_err(|_| format!("no {name}"));
    let bench = Bench {
        rank: variable("RANK")?.parse()?,
        place: format!("{}:{}", variable("MASTER_ADDR")?, variable("MASTER_PORT")?),
        token: std::env::var("THINWIRE_TOKEN").unwrap_or_default(),
        workers: workers.parse()?,
        servers: servers.parse()?,
        backups: backups.parse()?,
        format: format.clone(),
        bytes: bytes.parse()?,
        runs: runs.parse()?,
    };
    match (bench.rank >= bench.workers, what.as_str()) {
        (true, _) => bench.serve(),
        (false, "dense") => bench.dense(),
        (false, "sparse") => bench.sparse(),
        _ => Err(format!("'{what}', expected dense or sparse").into()),
    }
}

impl Bench {
    fn coordinator(&self) -> Result<Option<Coordinator>, Box<dyn Error>> {
        if self.rank > 0 {
            return Ok(None);
        }
        let options = |min| Options::new(CoordinatorMode::Saved, min, 64);
        let servers = Some(Servers::new(options(1), Configuration::new));
        let job = Job { workers: options(self.workers), servers };
        Ok(Some(Coordinator::bind(&self.place, &self.token, job, None, |_| {})?))
    }

    /// Serves until the coordinator ends.
    fn serve(&self) -> Outcome {
        wait_until(|| TcpStream::connect(&self.place).is_ok())?;
        let job_address = JobAddress::server(&self.place, &self.token)?;
        let host = TcpStream::connect(&self.place)?.local_addr()?.ip();
        let _server = Server::start(&job_address, &format!("{host}:0"), &Settings::default())?;
        while TcpStream::connect(&self.place).is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    fn definition(&self, rows: u64, width: u32) -> Definition {
        let table = TableDefinition {
            name: "rows".to_owned(),
            rows,
            width,
            optimizer: "sgd:lr=0.001".to_owned(),
            initial: "zeros".to_owned(),
            seed: 1,
            stream: 0,
            values: self.format.clone(),
        };
        let (servers, backups) = (self.servers, self.backups);
        let consistency = "sync".to_owned();
        Definition {
            tables: vec![table],
            consistency,
            shards: 8 * servers,
            backups,
            servers,
            restore: None,
        }
    }

    /// Joins the job as a worker.
    fn worker(&self, definition: &Definition) -> Result<(Client, Presence), Box<dyn Error>> {
        wait_until(|| TcpStream::connect(&self.place).is_ok())?;
        let job_address = JobAddress::new(&self.place, &self.token)?;
        let options = Options::new(CoordinatorMode::Saved, 1, 64);
        let presence = Presence::join(&job_address, &Settings::default(), options, Vec::new())?;
        let client = Client::open(&job_address, definition, LONG)?;
        presence.wait(0, LONG).ok_or("no epoch")?;
        Ok((client, presence))
    }

    fn dense(&self) -> Outcome {
        let _coordinator = self.coordinator()?;
        let rows = self.bytes as u64 / (4 * u64::from(DENSE_WIDTH));
        let (mut client, _presence) = self.worker(&self.definition(rows, DENSE_WIDTH))?;
        let all: Vec<u64> = (0..rows).collect();
        let mut values = vec![1.0; all.len() * DENSE_WIDTH as usize];
        let gradient = values.clone();
        let mut seconds = Vec::new();
        // The first run is not measured: it creates rows, connections and buffers.
        for _ in 0..=self.runs {
            let begun = Instant::now();
            client.begin_push(&[Gradient { table: 0, rows: &all, values: &gradient }])?;
            let pulling = client.begin_pull(&[(0, &all)])?;
            client.finish_push()?;
            client.finish_pull(pulling, &mut values)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        self.tell("thinwire", values.len() * 4, seconds);
        // A synchronous step acts as a barrier, so no worker leaves before all have finished.
        client.push(&[])?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    fn sparse(&self) -> Outcome {
        let _coordinator = self.coordinator()?;
        let (mut client, _presence) = self.worker(&self.definition(SPARSE_ROWS, SPARSE_WIDTH))?;
        let width = SPARSE_WIDTH as usize;
        let map = self.fill(&mut client)?;
        let batch = self.bytes / (4 * width);
        let mut out = vec![0.0; batch * width];
        let (mut local, mut pulled) = (Vec::new(), Vec::new());
        for run in 0..=self.runs as u64 {
            let ids = ids(batch, run);
            let begun = Instant::now();
            for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&map[id]);
            }
            local.push(begun.elapsed().as_secs_f64());
            black_box(&mut out);
            let begun = Instant::now();
            client.pull(&[(0, &ids)], &mut out)?;
            pulled.push(begun.elapsed().as_secs_f64());
            assert!((out[0] - map[&ids[0]][0]).abs() < 0.02, "value of a row");
        }
        self.tell("hash map", 4 * out.len(), local);
        self.tell("thinwire", 4 * out.len(), pulled);
        Ok(())
    }

    /// Writes every row. Returns the values as a hash map.
    fn fill(&self, client: &mut Client) -> Result<HashMap<u64, Vec<f32>>, Box<dyn Error>> {
        let width = SPARSE_WIDTH as usize;
        let mut map = HashMap::new();
        let all: Vec<u64> = (0..SPARSE_ROWS).collect();
        for rows in all.chunks(100_000) {
            let values: Vec<f32> = rows.iter().flat_map(|row| vec![value(*row); width]).collect();
            client.push(&[Gradient { table: 0, rows, values: &values }])?;
            map.extend(rows.iter().map(|row| (*row, vec![-0.001 * value(*row); width])));
        }
        Ok(map)
    }

    fn tell(&self, peer: &str, bytes: usize, mut seconds: Vec<f64>) {
        if self.rank > 0 {
            return;
        }
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        let (workers, servers, backups) = (self.workers, self.servers, self.backups);
        let network = std::env::var("NETWORK").unwrap_or_else(|_| "loopback".to_owned());
        println!(
            r#"{{"peer":"{peer}","world":{workers},"servers":{servers},"backups":{backups},"format":"{}","bytes":{bytes},"seconds_median":{:.6},"seconds_min":{:.6},"seconds_max":{:.6},"runs":{},"network":"{network}"}}"#,
            self.format,
            seconds[seconds.len() / 2],
            seconds[0],
            seconds[seconds.len() - 1],
            seconds.len(),
        );
    }
}

/// Returns the gradient of a row, a value that every format represents exactly.
fn value(row: u64) -> f32 {
    (row % 1000) as f32
}

/// Returns the uniform ids of a run.
fn ids(count: usize, run: u64) -> Vec<u64> {
    let key = Key { seed: 7, step: run, tensor: 0 };
    (0..count as u64).map(|at| u64::from(key.below(at, SPARSE_ROWS as u32))).collect()
}

fn wait_until(is_so: impl Fn() -> bool) -> Outcome {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        if Instant::now() > deadline {
            return Err("no coordinator".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
