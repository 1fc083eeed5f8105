//! Nodes of the simulated job: the coordinator, and processes that train.
//!
//! Training is a step that needs a message of every member, as an all-reduce does. A state is a hash of
//! all epochs and steps that led to it, so that two states are equal only if their histories are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::{
    CoordinatorMode, Epoch, Id, Member, MemberAction, MemberEvent, Message, Note, Options, Reason,
    Roster, RosterAction, RosterEvent, Standing,
};
use thinwire_testkit::net::{Action, Birth, Event, Node, Random};

use crate::training::{Data, Output, Training};

/// Node of processes outside of the network, such as an operator's.
const OUTSIDE: usize = 0xff;

/// Time for which a member counts as reachable after an echo.
const ECHO: Duration = Duration::from_secs(1);

/// Messages of the simulated job, and orders to its nodes.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Message of coordinator or member.
    Control { from: Id, to: Id, message: Message },
    /// Message of the training.
    Data { from: Id, to: Id, data: Data },
    /// A newcomer asks a member for an echo.
    Probe { from: Id, to: Id },
    /// The echo.
    Echo { from: Id, to: Id },
    /// Order to leave.
    Leave,
    /// Order of another number of ranks.
    Resize(u32),
}

/// Fact that laws are about.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A process has heard of a proposed epoch.
    Accepted(Epoch),
    /// A process has started an epoch, with this state.
    Started(Epoch, u64, u64),
    /// A member has the epoch's state: step and hash.
    Synced(u32, u64, u64),
    /// A step was applied: epoch, step and hash.
    Applied(u32, u64, u64),
    /// A process was fenced, and has no state any more.
    Fenced,
    /// A coordinator tells people.
    Said(Note),
}

/// Directory of the processes that run, as a registry has it.
#[derive(Debug, Default)]
pub struct Directory {
    pub ids: Vec<Id>,
    pub version: u64,
    pub left: Vec<bool>,
    /// Facts since the last event, of nodes that may have ended.
    pub facts: Vec<(Id, Fact)>,
}

/// Settings of a simulated job.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub options: Options,
    pub seed: u64,
    /// Number of nodes, the coordinator's included.
    pub nodes: usize,
}

enum Body {
    Member(Box<Member>),
    Coordinator(Box<Roster>),
}

pub struct Worker {
    setup: Setup,
    body: Body,
    directory: Rc<RefCell<Directory>>,
    version: u64,
    random: Random,
    training: Option<Training>,
    /// Messages of epochs that have not started here.
    early: Vec<(Id, Data)>,
    pub done: u64,
    pub hash: u64,
    accepted: u32,
    /// When members have answered a newcomer that could not reach them.
    echoes: BTreeMap<Id, Duration>,
    is_leaving: bool,
    armed: Duration,
    actions: Vec<Action<Packet>>,
}

pub fn node_of(id: Id) -> usize {
    (id.0 & 0xff) as usize
}

impl Worker {
    pub fn new(setup: Setup, birth: Birth, directory: Rc<RefCell<Directory>>) -> Worker {
        let id = Id((u64::from(birth.life) + 1) << 8 | birth.node as u64);
        let body = body(&setup, &birth, id);
        let mut worker = Worker {
            setup,
            body,
            directory,
            version: 0,
            random: Random::new(setup.seed ^ id.0 << 20),
            training: None,
            early: Vec::new(),
            done: 0,
            hash: 0,
            accepted: 0,
            echoes: BTreeMap::new(),
            is_leaving: false,
            armed: Duration::ZERO,
            actions: Vec::new(),
        };
        let mut directory = worker.directory.borrow_mut();
        directory.ids[birth.node] = worker.id();
        directory.version += 1;
        drop(directory);
        worker.armed = Duration::MAX;
        worker
    }

    pub fn id(&self) -> Id {
        match &self.body {
            Body::Member(member) => member.id(),
            Body::Coordinator(roster) => roster.id(),
        }
    }

    pub fn member(&self) -> Option<&Member> {
        match &self.body {
            Body::Member(member) => Some(member),
            Body::Coordinator(_) => None,
        }
    }

    pub fn roster(&self) -> Option<&Roster> {
        match &self.body {
            Body::Member(_) => None,
            Body::Coordinator(roster) => Some(roster),
        }
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// The number of the epoch that it trains in.
    pub fn trains(&self) -> Option<u32> {
        self.training.as_ref().map(|training| training.epoch.number)
    }

    fn receive(&mut self, packet: Packet, now: Duration) {
        match packet {
            Packet::Control { from, to, message } if to == self.id() => {
                self.control(from, message, now);
            }
            Packet::Data { from, to, data } if to == self.id() => self.data(from, data, now),
            Packet::Probe { from, to } if to == self.id() => {
                let message = Packet::Echo { from: to, to: from };
                self.actions.push(Action::Send { to: node_of(from), message });
            }
            Packet::Echo { from, to } if to == self.id() => drop(self.echoes.insert(from, now)),
            Packet::Leave if self.member().is_some() => {
                self.is_leaving = true;
                self.on(MemberEvent::Leave, now);
            }
            Packet::Resize(target) => {
                self.control(Id(OUTSIDE as u64), Message::Resize(target), now);
            }
            _ => {}
        }
    }

    fn control(&mut self, from: Id, message: Message, now: Duration) {
        let actions = match (&mut self.body, message) {
            (Body::Member(_), message) => {
                return self.on(MemberEvent::Message { from, message }, now);
            }
            (Body::Coordinator(roster), Message::Report(report)) => {
                roster.on(RosterEvent::Report { id: from, report }, now)
            }
            (Body::Coordinator(roster), Message::Resize(target)) => {
                roster.on(RosterEvent::Resize { id: from, target }, now)
            }
            (Body::Coordinator(roster), Message::Bye) => roster.on(RosterEvent::Ended(from), now),
            (Body::Coordinator(_), _) => Vec::new(),
        };
        self.coordinate(actions);
    }

    fn coordinate(&mut self, actions: Vec<RosterAction>) {
        for action in actions {
            match action {
                RosterAction::Send { to, message } => self.send(to, message),
                RosterAction::Save => self.save(),
                RosterAction::Say(note) => self.tell(Fact::Said(note)),
            }
        }
    }

    fn tell(&self, fact: Fact) {
        self.directory.borrow_mut().facts.push((self.id(), fact));
    }

    fn save(&mut self) {
        if let (CoordinatorMode::Saved, Some(roster)) = (self.setup.options.mode, self.roster()) {
            let bytes = roster.save();
            self.actions.push(Action::Save(bytes));
        }
    }

    fn send(&mut self, to: Id, message: Message) {
        let from = self.id();
        if node_of(to) != OUTSIDE {
            let message = Packet::Control { from, to, message };
            self.actions.push(Action::Send { to: node_of(to), message });
        }
    }

    /// Handles an event of the member, if this is one.
    fn on(&mut self, event: MemberEvent, now: Duration) {
        if let Body::Member(member) = &mut self.body {
            let actions = member.on(event, now);
            actions.into_iter().for_each(|action| self.obey(action, now));
            self.notice_proposal();
        }
    }

    fn notice_proposal(&mut self) {
        let accepted = self.member().and_then(Member::accepted);
        if let Some(epoch) = accepted.filter(|epoch| epoch.number != self.accepted).cloned() {
            self.accepted = epoch.number;
            self.tell(Fact::Accepted(epoch));
        }
    }

    fn obey(&mut self, action: MemberAction, now: Duration) {
        match action {
            MemberAction::Run(epoch) => self.run(epoch, now),
            MemberAction::Finish { .. } => match &mut self.training {
                Some(training) => training.finish(),
                None => self.on(MemberEvent::Halted, now),
            },
            MemberAction::Abort => {
                let silent = self.training.take().map(|training| training.silent(now));
                for peer in silent.into_iter().flatten() {
                    self.on(MemberEvent::Lost(peer), now);
                }
                self.on(MemberEvent::Halted, now);
            }
            MemberAction::Left => {
                self.directory.borrow_mut().left[node_of(self.id())] = true;
                self.actions.push(Action::Exit);
            }
            MemberAction::Fenced { .. } => self.tell(Fact::Fenced),
            MemberAction::Refused(Reason::Unreachable { .. }) => self.probe(now),
            MemberAction::Refused(_) => {}
            MemberAction::Send { to, message } => self.send(to, message),
        }
    }

    /// Asks the members of the last epoch for echoes, and tells which of them have sent none lately.
    fn probe(&mut self, now: Duration) {
        let epoch = self.member().and_then(|member| member.epoch().cloned());
        let (me, members) = (self.id(), epoch.map_or_else(Vec::new, |epoch| epoch.members));
        for to in &members {
            let message = Packet::Probe { from: me, to: *to };
            self.actions.push(Action::Send { to: node_of(*to), message });
        }
        let is_silent = |id: &Id| self.echoes.get(id).is_none_or(|at| now > *at + ECHO);
        let silent = members.into_iter().filter(is_silent).collect();
        self.on(MemberEvent::Unreachable(silent), now);
    }

    fn run(&mut self, epoch: Epoch, now: Duration) {
        if epoch.state_sources == 0 {
            (self.done, self.hash) = (0, 0);
        }
        self.tell(Fact::Started(epoch.clone(), self.done, self.hash));
        let mut output = Output::default();
        let number = epoch.number;
        let state = (self.done, self.hash);
        self.training = Some(Training::new(self.id(), epoch, state, now, &mut output));
        self.publish(output, now);
        for (from, data) in std::mem::take(&mut self.early) {
            if data.epoch() >= number {
                self.data(from, data, now);
            }
        }
    }

    fn data(&mut self, from: Id, data: Data, now: Duration) {
        let epoch = self.training.as_ref().map_or(0, |training| training.epoch.number);
        if data.epoch() > epoch {
            return self.early.push((from, data));
        }
        let mut output = Output::default();
        if let Some(training) = self.training.as_mut().filter(|_| data.epoch() == epoch) {
            training.receive(from, data, now, &mut output);
            self.publish(output, now);
        }
    }

    /// Performs what the training wants.
    fn publish(&mut self, output: Output, now: Duration) {
        let me = self.id();
        for (to, data) in output.sends {
            let message = Packet::Data { from: me, to, data };
            self.actions.push(Action::Send { to: node_of(to), message });
        }
        let epoch = self.trains().unwrap_or(0);
        if let Some((done, hash)) = output.synced {
            (self.done, self.hash) = (done, hash);
            self.tell(Fact::Synced(epoch, done, hash));
            self.on(MemberEvent::Synced { done }, now);
        }
        if let Some((done, hash)) = output.applied {
            (self.done, self.hash) = (done, hash);
            self.tell(Fact::Applied(epoch, done, hash));
            self.on(MemberEvent::Applied { done }, now);
        }
        if output.has_finished {
            self.training = None;
            self.on(MemberEvent::Halted, now);
        }
        for peer in output.lost {
            self.on(MemberEvent::Lost(peer), now);
        }
    }

    fn wake(&mut self, now: Duration) {
        self.look_up(now);
        let due = match &mut self.body {
            Body::Coordinator(roster) => {
                let actions = roster.on(RosterEvent::Tick, now);
                return self.coordinate(actions);
            }
            Body::Member(member) => now >= member.deadline(),
        };
        if due {
            self.on(MemberEvent::Tick, now);
        }
        let mut output = Output::default();
        if let Some(training) = &mut self.training {
            training.tick(now, &mut self.random, &mut output);
            self.publish(output, now);
        }
    }

    /// Reads the directory if it has changed.
    fn look_up(&mut self, now: Duration) {
        let directory = self.directory.borrow();
        if self.version == directory.version {
            return;
        }
        self.version = directory.version;
        let coordinator = directory.ids[0];
        drop(directory);
        self.on(MemberEvent::Coordinator(coordinator), now);
    }

    /// Tells of every process of a node that is known here, since the network does not say which died.
    fn closed(&mut self, peer: usize, now: Duration) {
        let latest = self.directory.borrow().ids[peer];
        match &mut self.body {
            Body::Coordinator(roster) => {
                let actions = roster.on(RosterEvent::Closed(latest), now);
                self.coordinate(actions);
            }
            Body::Member(_) => self.on(MemberEvent::Lost(latest), now),
        }
    }

    fn next(&self) -> Duration {
        let deadline = match &self.body {
            Body::Member(member) => member.deadline(),
            Body::Coordinator(roster) => roster.deadline(),
        };
        self.training.as_ref().map_or(deadline, |training| training.deadline().min(deadline))
    }

    /// Whether it is a newcomer that trains nowhere.
    pub fn is_spare(&self) -> bool {
        self.member().is_some_and(|member| member.standing() == Standing::Newcomer)
    }
}

fn body(setup: &Setup, birth: &Birth, id: Id) -> Body {
    let options = setup.options;
    if birth.node != 0 {
        return Body::Member(Box::new(Member::new(id, options, 1)));
    }
    let roster = match (&birth.saved, options.mode) {
        (Some(saved), _) => {
            Roster::restore(saved, options, birth.now, 2 * options.heartbeat(), Duration::ZERO)
                .expect("what was saved")
        }
        (None, CoordinatorMode::Unsaved) if birth.life > 0 => Roster::adopt(id, options, birth.now),
        _ => Roster::found(id, options),
    };
    Body::Coordinator(Box::new(roster))
}

impl Node for Worker {
    type Message = Packet;

    fn on(&mut self, event: Event<Packet>, now: Duration) -> Vec<Action<Packet>> {
        match event {
            Event::Boot | Event::Wake => {
                self.armed = Duration::MAX;
                self.wake(now);
            }
            Event::Message { message, .. } | Event::Order(message) => self.receive(message, now),
            Event::Closed { peer } => self.closed(peer, now),
        }
        let next = self.next();
        if next < self.armed {
            self.armed = next;
            self.actions.push(Action::Wake(next));
        }
        std::mem::take(&mut self.actions)
    }
}
