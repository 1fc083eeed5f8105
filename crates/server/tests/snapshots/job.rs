//! Simulated job, its faults, and the laws of its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{Consistency, Definition, Options, SnapshotState, TableDefinition};
use thinwire_testkit::net::{Fault, Net, Random, Weather};

use crate::coordinator::{Coordinator, Saved};
use crate::ledger::Ledger;
use crate::node::{COORDINATOR, Node, Packet, id};
use crate::server::Server;
use crate::worker::Worker;

const SHARDS: u32 = 4;
/// Time after the end of all faults within which the job must have ended.
const RECOVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub consistency: Consistency,
    pub seed: u64,
    pub servers: usize,
    pub workers: usize,
    pub backups: u32,
}

pub struct Job {
    pub setup: Setup,
    pub net: Net<Node>,
    pub ledger: Rc<RefCell<Ledger>>,
    pub saved: Rc<RefCell<Saved>>,
}

fn definition(setup: &Setup) -> Definition {
    let table = TableDefinition {
        name: "t".to_owned(),
        rows: 64,
        width: 1,
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
        values: "f32".to_owned(),
    };
    Definition {
        tables: vec![table],
        consistency: setup.consistency.to_string(),
        shards: SHARDS,
        backups: setup.backups,
        servers: setup.servers as u32,
        restore: None,
    }
}

impl Setup {
    fn nodes(&self) -> usize {
        1 + self.servers + self.workers
    }

    fn options(&self) -> Options {
        let ms = Duration::from_millis;
        Options { beat: ms(3), hold: ms(40), ..Options::new(self.consistency) }
    }
}

impl Job {
    pub fn new(setup: Setup, weather: Weather) -> Job {
        let ledger = Rc::new(RefCell::new(Ledger::default()));
        let saved = Rc::new(RefCell::new(Saved::default()));
        let shared = (Rc::clone(&saved), Rc::clone(&ledger));
        let net = Net::new(setup.seed, setup.nodes(), weather, move |birth| {
            let (saved, ledger) = (Rc::clone(&shared.0), Rc::clone(&shared.1));
            let name = id(birth.node, birth.life, (1..=setup.servers).contains(&birth.node));
            if birth.node == COORDINATOR {
                let job = definition(&setup);
                let of = (&job, setup.workers);
                Node::Coordinator(Coordinator::new((saved, ledger), of, birth.now))
            } else if name.is_server() {
                let of = (setup.options(), SHARDS);
                Node::Server(Box::new(Server::new(name, of, ledger, birth.now)))
            } else {
                Node::Worker(Worker::new(name, setup.seed, birth.now))
            }
        });
        Job { setup, net, ledger, saved }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.net.fault(self.net.now(), fault);
    }

    pub fn ask(&mut self, at: Duration) {
        self.net.order(at, COORDINATOR, Packet::Snapshot);
    }

    pub fn run(&mut self, until: Duration) {
        while self.net.step(until).is_some() {}
    }

    /// Runs until `is_so` holds. Returns false if it does not hold by `end`.
    pub fn run_until(&mut self, end: Duration, is_so: impl Fn(&Job) -> bool) -> bool {
        loop {
            if is_so(self) {
                return true;
            }
            if self.net.step(end).is_none() {
                return false;
            }
        }
    }

    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        (1..=self.setup.servers).filter_map(|node| match self.net.node(node) {
            Some(Node::Server(server)) => Some(&**server),
            _ => None,
        })
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        (self.setup.servers + 1..self.setup.nodes()).filter_map(|node| match self.net.node(node) {
            Some(Node::Worker(worker)) => Some(worker),
            _ => None,
        })
    }

    /// Returns whether all replicas of some shard were killed.
    fn is_lost(&self) -> bool {
        let lives = |id: &Id| self.servers().any(|server| server.id == *id);
        let saved = self.saved.borrow();
        let mut views = saved.configuration.job_state().views.iter();
        views.any(|view| !view.replicas.iter().any(lives))
    }

    /// Returns whether all workers have ended and all primaries have all of their pushes.
    fn is_over(&self) -> bool {
        let saved = self.saved.borrow();
        let state = saved.configuration.job_state();
        let has_all = |(shard, view): (usize, &thinwire_server::View)| {
            let primary = self.servers().find(|server| view.primary() == Some(server.id));
            primary.is_some_and(|server| {
                let applied = &server.copies[shard].applied;
                self.workers().all(|it| applied.get(&it.id).copied().unwrap_or(0) == it.pushed)
            })
        };
        !state.snapshot.as_ref().is_some_and(SnapshotState::is_under_way)
            && self.workers().all(Worker::is_done)
            && state.views.iter().enumerate().all(has_all)
    }

    /// Ends all faults and all workers. Laws: every snapshot ends, and held pushes are applied.
    pub fn recover(&mut self) {
        self.fault(Fault::Weather(Weather::calm()));
        self.fault(Fault::Heal);
        for node in 0..self.setup.nodes() {
            self.fault(Fault::Resume(node));
            self.fault(Fault::Boot(node));
        }
        let now = self.net.now();
        self.ask(now + Duration::from_millis(30));
        for node in self.setup.servers + 1..self.setup.nodes() {
            // Some nodes that were killed last start again only now.
            self.net.order(now + Duration::from_millis(80), node, Packet::Stop);
        }
        self.run(now + Duration::from_millis(81));
        let is_over = |job: &Job| job.is_over() || job.is_lost();
        let ended = self.run_until(now + RECOVERY, is_over);
        assert!(ended, "{}", self.describe());
    }

    fn describe(&self) -> String {
        let saved = self.saved.borrow();
        let state = saved.configuration.job_state();
        let mut text = format!("{:?}\n{:?}\n{:?}\n", self.setup, state.snapshot, state.workers);
        for worker in self.workers() {
            text += &format!("{} {} {:?}\n", worker.id, worker.pushed, worker.open);
        }
        for (shard, view) in state.views.iter().enumerate() {
            text += &format!("shard {shard}: {view:?}\n");
            for server in self.servers().filter(|server| view.replicas.contains(&server.id)) {
                let copy = &server.copies[shard];
                text += &format!("{} {:?}\n", server.id, copy.applied);
            }
        }
        text
    }
}

fn setup(seed: u64, random: &mut Random) -> Setup {
    let consistency = match seed % 4 {
        0 => Consistency::Sync,
        1 => Consistency::Async,
        _ => Consistency::Bounded(1 + random.below(3) as u32),
    };
    let servers = 2 + random.below(2) as usize;
    let workers = 1 + random.below(3) as usize;
    Setup { consistency, seed, servers, workers, backups: 1 }
}

fn weather(random: &mut Random) -> Weather {
    let calm = Weather::calm();
    match random.below(3) {
        0 => Weather { loss: 0.05, duplication: 0.05, ..calm },
        1 => Weather { delay: Duration::from_micros(100)..Duration::from_millis(4), ..calm },
        _ => calm,
    }
}

fn fault(job: &mut Job, at: Duration, random: &mut Random) {
    let nodes = job.setup.nodes() as u64;
    let node = random.below(nodes) as usize;
    let later = at + Duration::from_millis(random.range(1..60));
    let mut plan = |at, fault| job.net.fault(at, fault);
    match random.below(6) {
        0 => plan(at, Fault::Kill(node)),
        1 => plan(at, Fault::PowerOff(node)),
        2 | 3 => {
            plan(at, Fault::Pause(node));
            plan(later, Fault::Resume(node));
        }
        4 => {
            let other = random.below(nodes) as usize;
            plan(at, Fault::Cut { from: node, to: other });
        }
        _ => plan(at, Fault::Split { side: random.bits() }),
    }
    plan(later, Fault::Heal);
    plan(later, Fault::Boot(node));
}

/// Returns a job with random faults around its snapshots.
pub fn afflicted(seed: u64) -> Job {
    let mut random = Random::new(seed);
    let setup = setup(seed, &mut random);
    let mut job = Job::new(setup, weather(&mut random));
    let end = Duration::from_millis(random.range(100..250));
    for _ in 0..random.range(2..12) {
        let at = random.time(&(Duration::from_millis(20)..end));
        job.ask(at);
        if random.chance(0.3) {
            // A fault soon after the request hits the snapshot in any of its stages.
            let at = at + random.time(&(Duration::ZERO..Duration::from_millis(15)));
            fault(&mut job, at, &mut random);
        }
    }
    job.run(end);
    job
}
