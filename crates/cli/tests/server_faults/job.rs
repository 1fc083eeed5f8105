//! Job that counts pushes: a coordinator with its state in a file, servers, and two workers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use thinwire_job::elastic::JobAddress;

use crate::counter::{COUNTS, PUSHED, TOKEN, VARIABLE};
use crate::network::{Network, Place};
use crate::support::{Folder, SILENCE, eventually, free_port, signal};

/// Path of the program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_thinwire");

/// Job with two workers that push.
pub struct CountedJob<'a> {
    network: &'a Network,
    folder: Folder,
    address: String,
    coordinator: Option<Running>,
    servers: Vec<Running>,
    workers: Vec<Worker>,
    /// Workers that were killed.
    broken: Vec<Worker>,
}

/// Result of a job.
#[derive(Debug)]
pub struct Ended {
    /// Number of acknowledged pushes.
    pub acknowledged: u32,
    /// Number of killed workers, each of which may have died in a push.
    pub broken: u32,
    /// Longest time of a push.
    pub longest: Duration,
    /// Number of pushes that each value has counted.
    pub counts: Vec<u32>,
}

impl<'a> CountedJob<'a> {
    /// Starts a job with this many servers, the last of them in the far place, and this many backups per
    /// shard.
    pub fn start(name: &str, network: &'a Network, servers: u32, backups: u32) -> CountedJob<'a> {
        let folder = Folder::new(&format!("servers-{name}"));
        let address = format!("{}:{}", network.address(Place::Near), free_port());
        let mut job = CountedJob {
            network,
            folder,
            address,
            coordinator: None,
            servers: Vec::new(),
            workers: Vec::new(),
            broken: Vec::new(),
        };
        job.restart_coordinator();
        let far = matches!(network, Network::Hosts(_)).then_some(Place::Far);
        (1..servers).for_each(|_| job.add_server(Place::Near));
        job.add_server(far.unwrap_or(Place::Near));
        job.workers = (0..2).map(|_| job.worker(servers, backups)).collect();
        job
    }

    /// Waits until the workers together have made this many pushes.
    pub fn wait_for_pushes(&self, pushes: u32) {
        eventually(|| (self.all().map(Worker::pushes).sum::<u32>() >= pushes).then_some(()));
    }

    /// Kills a server with SIGKILL.
    pub fn kill_server(&mut self, at: usize) {
        drop(self.servers.remove(at));
    }

    /// Stops a server with SIGSTOP for a time.
    pub fn stop_server(&mut self, at: usize, time: Duration) {
        let process = self.servers[at].0.id();
        signal(process, "STOP");
        std::thread::sleep(time);
        signal(process, "CONT");
    }

    /// Kills two servers at once with SIGKILL.
    pub fn kill_servers(&mut self, mut at: [usize; 2]) {
        at.sort_unstable();
        let [first, second] = at;
        assert_ne!(first, second);
        let victims = [self.servers.remove(second), self.servers.remove(first)];
        drop(victims);
    }

    /// Kills a worker with SIGKILL.
    pub fn kill_worker(&mut self, at: usize) {
        let mut worker = self.workers.remove(at);
        worker.process.end();
        self.broken.push(worker);
    }

    /// Kills the coordinator with SIGKILL.
    pub fn kill_coordinator(&mut self) {
        self.coordinator = None;
    }

    /// Starts the coordinator again, which continues from its saved state.
    pub fn restart_coordinator(&mut self) {
        let mut command = self.network.command(Place::Near);
        let state = self.folder.path().join("job.state");
        command.args([PROGRAM, "coordinator", "--servers", "--ranks", "1:2"]);
        command.args(["--listen", &self.address, "--state"]).arg(state);
        self.coordinator = Some(self.run(command));
    }

    /// Starts a server.
    pub fn add_server(&mut self, place: Place) {
        let mut command = self.network.command(place);
        let listen = format!("{}:0", self.network.address(place));
        command.args([PROGRAM, "server", "--listen", &listen]);
        command.args(["--coordinator", &self.address]);
        let server = self.run(command);
        self.servers.push(server);
    }

    /// Cuts the far place off for a time.
    pub fn cut(&mut self, time: Duration) {
        self.network.cut();
        std::thread::sleep(time);
        self.network.mend();
    }

    /// Waits until the workers have finished, and counts.
    pub fn finish(mut self) -> Ended {
        let mut workers = std::mem::take(&mut self.workers);
        workers.iter_mut().for_each(Worker::finish);
        let all: Vec<&Worker> = workers.iter().chain(&self.broken).collect();
        let acknowledged = all.iter().map(|worker| worker.pushes()).sum();
        let longest = all.iter().map(|worker| worker.longest()).max().unwrap_or_default();
        Ended { acknowledged, broken: self.broken.len() as u32, longest, counts: self.counts() }
    }

    fn all(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().chain(&self.broken)
    }

    fn counts(&self) -> Vec<u32> {
        let mut command = self.counter(&format!("read {}", self.address));
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counts = text.lines().find_map(|line| line.strip_prefix(COUNTS));
        let counts = counts.unwrap_or_else(|| panic!("no counts in {text}"));
        counts.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn worker(&self, servers: u32, backups: u32) -> Worker {
        let mut command = self.counter(&format!("push {servers} {backups}"));
        let job_address = JobAddress::new(&self.address, TOKEN).unwrap();
        command.envs(job_address.variables()).stdout(Stdio::piped());
        Worker::read(self.run(command))
    }

    /// Returns the command of a counting process.
    fn counter(&self, task: &str) -> Command {
        let mut command = self.network.command(Place::Near);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "counter", "--nocapture"]).env(VARIABLE, task);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, mut command: Command) -> Running {
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        let silence = SILENCE.as_secs().to_string();
        command.env("THINWIRE_TOKEN", TOKEN).env("THINWIRE_HEARTBEAT_TIMEOUT_S", silence);
        Running(command.spawn().unwrap())
    }
}

/// Process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Worker, and its reports so far.
struct Worker {
    process: Running,
    pushes: Arc<AtomicU32>,
    longest_us: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn read(mut process: Running) -> Worker {
        let (pushes, longest_us) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let (counted, longest) = (Arc::clone(&pushes), Arc::clone(&longest_us));
        let thread = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(time) = line.strip_prefix(PUSHED) {
                    longest.fetch_max(time.trim().parse().unwrap(), Ordering::Relaxed);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Worker { process, pushes, longest_us, thread: Some(thread) }
    }

    fn pushes(&self) -> u32 {
        self.pushes.load(Ordering::Relaxed)
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    /// Waits until the worker has ended successfully.
    fn finish(&mut self) {
        let status = eventually(|| self.process.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}
