//! A simulated job: its nodes, its faults, and the laws that they are held to.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::{CoordinatorMode, Id, Roster, Wait};
use thinwire_testkit::net::{Fault, Net, Weather};

use crate::ledger::Ledger;
use crate::worker::{Directory, Packet, Setup, Worker};

pub struct Job {
    pub setup: Setup,
    pub net: Net<Worker>,
    pub ledger: Ledger,
    pub directory: Rc<RefCell<Directory>>,
    is_recorded: bool,
}

impl Job {
    pub fn new(setup: Setup, weather: Weather) -> Job {
        let directory = Directory {
            ids: vec![Id(0); setup.nodes],
            version: 1,
            left: vec![false; setup.nodes],
            facts: Vec::new(),
        };
        let directory = Rc::new(RefCell::new(directory));
        let shared = Rc::clone(&directory);
        let net = Net::new(setup.seed, setup.nodes, weather, move |birth| {
            Worker::new(setup, birth, Rc::clone(&shared))
        });
        let ledger = Ledger::new(setup.options.min);
        Job { setup, net, ledger, directory, is_recorded: false }
    }

    /// Prints what happens from now on.
    pub fn record(&mut self) {
        self.is_recorded = true;
        self.net.record();
    }

    pub fn run(&mut self, until: Duration) {
        while self.net.step(until).is_some() {
            self.account();
        }
    }

    /// Runs for a number of events.
    pub fn run_events(&mut self, count: usize) {
        for _ in 0..count {
            self.net.step(Duration::MAX / 2);
            self.account();
        }
    }

    /// Holds what nodes told to the laws.
    fn account(&mut self) {
        if self.directory.borrow().facts.is_empty() {
            return;
        }
        let facts = std::mem::take(&mut self.directory.borrow_mut().facts);
        for (id, fact) in facts {
            if self.is_recorded {
                eprintln!("{:?} {id:?} {fact:?}", self.net.now());
            }
            self.ledger.take(id, fact);
        }
    }

    /// Runs until `is_over`, at most until `end`; the time that it took.
    pub fn run_until(&mut self, end: Duration, is_over: impl Fn(&Job) -> bool) -> Option<Duration> {
        let start = self.net.now();
        while self.net.now() < end {
            self.run(self.net.now() + Duration::from_millis(50));
            if is_over(self) {
                return Some(self.net.now() - start);
            }
        }
        None
    }

    pub fn fault(&mut self, fault: Fault) {
        self.net.fault(self.net.now(), fault);
    }

    pub fn order(&mut self, node: usize, packet: Packet) {
        self.net.order(self.net.now(), node, packet);
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        (0..self.setup.nodes).filter_map(|node| self.net.node(node))
    }

    /// The processes that want to train.
    pub fn willing(&self) -> impl Iterator<Item = &Worker> {
        self.workers().filter(|worker| worker.member().is_some() && !worker.is_leaving())
    }

    /// Whether all that want to train do so in one epoch, as many as there may be, and no leaver is left.
    pub fn is_whole(&self) -> bool {
        let Some(latest) = self.ledger.latest() else { return false };
        let coordinates =
            |roster: &&Roster| roster.epoch().is_some_and(|epoch| epoch.number == latest.number);
        let Some(roster) = self.workers().filter_map(Worker::roster).find(coordinates) else {
            return false;
        };
        let willing = self.willing().count();
        let size = willing.min(roster.target() as usize);
        let trains = |worker: &&Worker| {
            worker.trains() == Some(latest.number) && worker.done >= latest.done + 2
        };
        let training = self.willing().filter(trains).count();
        let spares = self.willing().filter(|worker| worker.is_spare()).count();
        let has_leavers = self.workers().any(Worker::is_leaving);
        let is_full = training == size && latest.members.len() == size;
        is_full && training + spares == willing && !has_leavers
    }

    /// Whether the job cannot continue, and says so.
    pub fn waits_rightly(&self) -> bool {
        let rosters = || self.workers().filter_map(Worker::roster);
        let waits = |is_right: fn(&Wait) -> bool| {
            rosters().filter_map(Roster::waiting).any(|wait| is_right(&wait))
        };
        if !self.can_decide() {
            // Whatever it waits for: promises of members that have ended since may count.
            let is_right = |wait: &Wait| !matches!(wait, Wait::StateSource { .. });
            return rosters().next().is_none() || waits(is_right);
        }
        let has_few = self.willing().count() < self.setup.options.min as usize;
        let lacks_members = has_few && waits(|wait| matches!(wait, Wait::Members { .. }));
        lacks_members || self.is_ambiguous()
    }

    /// Whether a proposed epoch may have started, and half of its members or more have ended since.
    fn is_ambiguous(&self) -> bool {
        let proposed = |number: u32| {
            let known = self.willing().filter_map(|worker| worker.member()?.accepted());
            let mut known = known.filter(|epoch| epoch.number == number);
            known.next().is_some_and(|epoch| {
                let living = epoch.members.iter().filter(|id| self.lives(**id)).count();
                2 * living <= epoch.members.len()
            })
        };
        self.workers().filter_map(Worker::roster).any(|roster| {
            matches!(roster.waiting(), Some(Wait::Proposed { number }) if proposed(number))
        })
    }

    fn lives(&self, id: Id) -> bool {
        self.workers().any(|worker| worker.id() == id)
    }

    /// Whether more than half of the last epoch live, or need not.
    fn can_decide(&self) -> bool {
        if self.setup.options.mode == CoordinatorMode::Saved {
            return true;
        }
        // The last epoch that anyone alive knows to have started; before the first, the founder decides.
        let decided = self.workers().filter_map(Worker::roster).filter_map(Roster::epoch);
        let started = self.workers().filter_map(|worker| worker.member()?.epoch());
        let Some(latest) = decided.chain(started).max_by_key(|epoch| epoch.number) else {
            return self.net.node(0).is_some_and(|founder| founder.id().0 >> 8 == 1);
        };
        2 * latest.members.iter().filter(|id| self.lives(**id)).count() > latest.members.len()
    }
}
