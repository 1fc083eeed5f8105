//! Server: its copies of all shards, and a beat.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{
    Action as Act, Event as ShardEvent, Frontier, JobState, Message, Options, Pace, Request, Shard,
    SnapshotStage, View, ViewRequest,
};
use thinwire_testkit::net::{Action, Event};

use crate::ledger::Ledger;
use crate::node::{Actions, Applied, BEAT, COORDINATOR, Packet, ask, send};

pub struct Copy {
    pub shard: Shard,
    pub applied: Applied,
    incoming: Option<Applied>,
}

/// Report of the server about a snapshot.
#[derive(Default)]
struct Report {
    number: u64,
    logged: BTreeSet<u32>,
    newest: Frontier,
    written: BTreeSet<u32>,
    failure: Option<String>,
}

pub struct Server {
    pub id: Id,
    pub copies: Vec<Copy>,
    state: Rc<JobState>,
    report: Report,
    ledger: Rc<RefCell<Ledger>>,
    beat_at: Duration,
}

impl Server {
    pub fn new(
        id: Id,
        (options, shards): (Options, u32),
        ledger: Rc<RefCell<Ledger>>,
        now: Duration,
    ) -> Server {
        let copy =
            |_| Copy { shard: Shard::new(id, options), applied: Applied::new(), incoming: None };
        let (state, report) = (Rc::new(JobState::default()), Report::default());
        Server { id, copies: (0..shards).map(copy).collect(), state, report, ledger, beat_at: now }
    }

    pub fn deadline(&self) -> Duration {
        self.copies.iter().map(|copy| copy.shard.deadline()).min().expect("there are shards")
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        if let Event::Message { message, .. } = event {
            self.hear(message, now, &mut actions);
        }
        for shard in 0..self.copies.len() as u32 {
            if now >= self.copies[shard as usize].shard.deadline() {
                self.tell(shard, ShardEvent::Tick, now, &mut actions);
            }
        }
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            let beat = Packet::Beat { id: self.id };
            actions.push(Action::Send { to: COORDINATOR, message: beat });
            let requests = self.request().into_iter().chain(self.kept());
            actions.extend(requests.map(|request| ask(self.id, request)));
        }
        actions.push(Action::Wake(self.beat_at.min(self.deadline())));
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        match packet {
            Packet::Told(state) if state.version >= self.state.version => {
                self.state = Rc::clone(&state);
                for (shard, view) in (0..).zip(&state.views) {
                    self.tell(shard, ShardEvent::View(view.clone()), now, actions);
                    self.tell(shard, ShardEvent::Workers(state.workers.clone()), now, actions);
                }
                let Some(snapshot) = &state.snapshot else { return };
                for shard in 0..state.views.len() as u32 {
                    let (snapshot, order) = (snapshot.number, snapshot.order());
                    self.tell(shard, ShardEvent::Snapshot { snapshot, order }, now, actions);
                }
            }
            Packet::Between { from, to, shard, message, tables } if to == self.id => {
                self.copies[shard as usize].incoming = tables;
                self.tell(shard, ShardEvent::Message { from, message }, now, actions);
            }
            Packet::Push { shard, push } => {
                self.tell(shard, ShardEvent::Push(push), now, actions);
            }
            Packet::Pull { shard, pull } => {
                self.tell(shard, ShardEvent::Pull(pull), now, actions);
            }
            _ => {}
        }
    }

    fn tell(&mut self, shard: u32, event: ShardEvent, now: Duration, actions: &mut Actions) {
        for action in self.copies[shard as usize].shard.on(event, now) {
            self.perform(shard, action, actions);
        }
    }

    fn perform(&mut self, shard: u32, action: Act, actions: &mut Actions) {
        let copy = &mut self.copies[shard as usize];
        match action {
            Act::Forward { to, message } => {
                let is_snapshot = matches!(message, Message::Snapshot { .. });
                let tables = is_snapshot.then(|| copy.applied.clone());
                let packet = Packet::Between { from: self.id, to, shard, message, tables };
                actions.push(send(to, packet));
            }
            Act::Load => copy.applied = copy.incoming.take().expect("a snapshot has tables"),
            Act::Drop => copy.applied = Applied::new(),
            Act::Apply(write) => {
                self.ledger.borrow().applies(shard, &write, &mut copy.applied);
            }
            Act::Acknowledge { client, number, pace: Pace { step, .. } } => {
                let request = Request::Push(number);
                actions.push(send(client, Packet::Done { shard, client, request, step }));
            }
            Act::Answer { pull, pace: Pace { step, .. }, .. } => {
                let (client, request) = (pull.client, Request::Pull(pull.request));
                actions.push(send(client, Packet::Done { shard, client, request, step }));
            }
            Act::Ready { view, learner } => {
                actions.push(ask(self.id, ViewRequest::Ready { shard, view, learner }));
            }
            Act::Logged { snapshot, pushes } => {
                let report = self.report(snapshot);
                report.logged.insert(shard);
                report.newest.join(&pushes);
            }
            Act::Capture { snapshot } => {
                let applied = copy.applied.clone();
                self.ledger.borrow_mut().captures(snapshot, shard, applied);
                self.report(snapshot).written.insert(shard);
            }
            Act::Abandon { snapshot, missing } => {
                self.report(snapshot).failure = Some(format!("{missing:?}"));
            }
            Act::Refuse { .. } | Act::Delay { .. } => {}
        }
    }

    fn report(&mut self, number: u64) -> &mut Report {
        if self.report.number != number {
            self.report = Report { number, ..Report::default() };
        }
        &mut self.report
    }

    /// Returns the report of the copies that are here of shards that no server of the epoch has.
    fn kept(&self) -> Option<ViewRequest> {
        let view = |shard: u32| (shard, &self.state.views[shard as usize]);
        let is_here = |(shard, view): &(u32, &View)| self.copies[*shard as usize].shard.keeps(view);
        let kept = self.state.unavailable().map(view).filter(is_here);
        let views: Vec<(u32, u64)> = kept.map(|(shard, view)| (shard, view.number)).collect();
        (!views.is_empty()).then_some(ViewRequest::Kept { views })
    }

    /// Returns the request to the coordinator, which is repeated until the state changes.
    fn request(&self) -> Option<ViewRequest> {
        let snapshot = self.state.snapshot.as_ref()?;
        let (number, report) = (snapshot.number, &self.report);
        let is_mine = |shard: &u32| self.state.views[*shard as usize].primary() == Some(self.id);
        let mine: BTreeSet<u32> = (0..self.state.views.len() as u32).filter(is_mine).collect();
        let is_known = report.number == number;
        match (&snapshot.stage, &report.failure) {
            (_, Some(reason)) if is_known => {
                Some(ViewRequest::Abandon { snapshot: number, reason: reason.clone() })
            }
            (SnapshotStage::Asked, _) if is_known && report.logged.is_superset(&mine) => {
                Some(ViewRequest::Logged { snapshot: number, pushes: report.newest.clone() })
            }
            (SnapshotStage::Agreed(_), _) if is_known && report.written.is_superset(&mine) => {
                Some(ViewRequest::Written { snapshot: number })
            }
            (SnapshotStage::Written(_), _) if mine.contains(&0) => {
                Some(ViewRequest::Sealed { snapshot: number, name: "name".to_owned() })
            }
            _ => None,
        }
    }
}
