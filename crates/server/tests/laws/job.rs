//! Simulated job: its nodes, and the laws of its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_server::Options;
use thinwire_testkit::net::{Fault, Net, Weather};

use crate::coordinator::{Coordinator, Saved};
use crate::ledger::Ledger;
use crate::node::{COORDINATOR, Node, Packet, id};
use crate::server::Server;
use crate::worker::Worker;

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub options: Options,
    pub seed: u64,
    pub servers: usize,
    pub workers: usize,
    /// Number of copies of the shard.
    pub copies: usize,
}

pub struct Job {
    pub setup: Setup,
    pub net: Net<Node>,
    pub ledger: Rc<RefCell<Ledger>>,
    pub saved: Rc<RefCell<Saved>>,
}

impl Job {
    pub fn new(setup: Setup, weather: Weather) -> Job {
        let ledger = Rc::new(RefCell::new(Ledger::new(setup.options.consistency)));
        let saved = Rc::new(RefCell::new(Saved::default()));
        let shared = (Rc::clone(&ledger), Rc::clone(&saved));
        let net = Net::new(setup.seed, setup.nodes(), weather, move |birth| {
            let (ledger, saved) = (Rc::clone(&shared.0), Rc::clone(&shared.1));
            let name = id(birth.node, birth.life);
            if birth.node == COORDINATOR {
                Node::Coordinator(Coordinator::new(saved, setup.copies, birth.now))
            } else if birth.node <= setup.servers {
                Node::Server(Box::new(Server::new(name, setup.options, ledger, birth.now)))
            } else {
                Node::Worker(Worker::new(name, setup.seed, birth.now))
            }
        });
        Job { setup, net, ledger, saved }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.net.fault(self.net.now(), fault);
    }

    pub fn run(&mut self, until: Duration) {
        while self.net.step(until).is_some() {}
    }

    /// Runs until `is_so` holds and returns the time, or `None` if it does not hold by `end`.
    pub fn run_until(&mut self, end: Duration, is_so: impl Fn(&Job) -> bool) -> Option<Duration> {
        loop {
            if is_so(self) {
                return Some(self.net.now());
            }
            self.net.step(end)?;
        }
    }

    pub fn server(&self, node: usize) -> Option<&Server> {
        match self.net.node(node) {
            Some(Node::Server(server)) => Some(server),
            _ => None,
        }
    }

    pub fn worker(&self, node: usize) -> Option<&Worker> {
        match self.net.node(node) {
            Some(Node::Worker(worker)) => Some(worker),
            _ => None,
        }
    }

    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        (1..=self.setup.servers).filter_map(|node| self.server(node))
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        (self.setup.servers + 1..self.setup.nodes()).filter_map(|node| self.worker(node))
    }

    pub fn order_workers(&mut self, at: Duration, packet: &Packet) {
        for node in self.setup.servers + 1..self.setup.nodes() {
            self.net.order(at, node, packet.clone());
        }
    }

    /// Returns whether all replicas of the last view are gone.
    pub fn is_lost(&self) -> bool {
        let saved = self.saved.borrow();
        let lives = |id| self.servers().any(|server| server.id == id);
        saved.view.as_ref().is_some_and(|view| !view.replicas.iter().any(|id| lives(*id)))
    }

    /// Returns whether all workers have finished and all copies exist and are complete.
    pub fn is_whole(&self) -> bool {
        let saved = self.saved.borrow();
        let Some(view) = &saved.view else { return false };
        let writes = self.ledger.borrow().len();
        let copies: Vec<&Server> =
            self.servers().filter(|server| view.replicas.contains(&server.id)).collect();
        self.workers().count() == self.setup.workers
            && self.workers().all(Worker::is_done)
            && saved.workers.ids.is_empty()
            && view.learners.is_empty()
            && (view.replicas.len(), copies.len()) == (self.setup.copies, self.setup.copies)
            && self.servers().all(|server| server.shard.view() == view)
            && copies.iter().all(|server| server.applied == writes)
            && copies.iter().all(|server| server.shard.deadline() == Duration::MAX)
    }

    /// Law: in the end all replicas are equal, and are the sum of all pushes.
    pub fn check_copies(&self) {
        let ledger = self.ledger.borrow();
        let saved = self.saved.borrow();
        let view = saved.view.as_ref().expect("the job has begun");
        let copies = self.servers().filter(|server| view.replicas.contains(&server.id));
        let copies: Vec<&Server> = copies.collect();
        for server in &copies {
            assert_eq!(server.values(), ledger.values(), "the values of {}", server.id);
            let bytes =
                [server, copies[0]].map(|server| server.tables.to_bytes().expect("no disk"));
            assert_eq!(bytes[0], bytes[1], "the tables of {}", server.id);
        }
    }

    pub fn describe(&self) -> String {
        let mut text = format!("{:?}\n{}", self.setup, self.net.trace());
        text += &format!("view {:?}, lost {}\n", self.saved.borrow().view, self.is_lost());
        for server in self.servers() {
            text += &format!("{} applied {} {:?}\n", server.id, server.applied, server.shard);
        }
        self.workers().for_each(|worker| text += &format!("{worker:?}\n"));
        text + &format!("{} writes\n", self.ledger.borrow().len())
    }
}

impl Setup {
    pub fn nodes(&self) -> usize {
        1 + self.servers + self.workers
    }
}
