//! Worker: pushes to all shards, pulls from all, waits, and repeats unanswered requests.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{JobState, Pull, Push, Request};
use thinwire_testkit::net::{Action, Event, Random};

use crate::node::{Actions, BEAT, COORDINATOR, Packet, send};

/// Time after which an unanswered request is repeated.
const RETRY: Duration = Duration::from_millis(9);

pub struct Worker {
    pub id: Id,
    /// Number of the last push.
    pub pushed: u64,
    /// Step of the last push.
    step: u64,
    /// Step of the slowest worker, as far as answers have reported it.
    slowest: u64,
    /// Unanswered requests, all pushes or all pulls.
    pub open: BTreeSet<(u32, Request)>,
    stops: bool,
    state: Rc<JobState>,
    random: Random,
    /// Longest time between two pushes.
    thought: Duration,
    next_push: Duration,
    beat_at: Duration,
    retry_at: Duration,
}

impl Worker {
    pub fn new(id: Id, seed: u64, now: Duration) -> Worker {
        let mut random = Random::new(seed ^ id.0.wrapping_mul(0x9e37_79b9));
        let thought = Duration::from_micros(random.range(100..6000));
        Worker {
            id,
            pushed: 0,
            step: 0,
            slowest: 0,
            open: BTreeSet::new(),
            stops: false,
            state: Rc::default(),
            random,
            thought,
            next_push: now,
            beat_at: now,
            retry_at: Duration::MAX,
        }
    }

    pub fn is_done(&self) -> bool {
        self.stops && self.open.is_empty()
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        if let Event::Message { message, .. } | Event::Order(message) = event {
            self.hear(message, now, &mut actions);
        }
        if self.is_done() {
            actions.push(Action::Send { to: COORDINATOR, message: Packet::Leave { id: self.id } });
            return actions;
        }
        let is_worker = self.state.is_founded() && self.state.workers.ids.contains(&self.id);
        if self.open.is_empty() && now >= self.next_push && is_worker {
            (self.pushed, self.step) = (self.pushed + 1, self.step.max(self.slowest) + 1);
            self.begin(Request::Push(self.pushed));
            self.ask(now, &mut actions);
        } else if now >= self.retry_at {
            self.ask(now, &mut actions);
        }
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            let beat = Packet::Beat { id: self.id };
            actions.push(Action::Send { to: COORDINATOR, message: beat });
        }
        let next = if self.open.is_empty() { self.next_push } else { self.retry_at };
        actions.push(Action::Wake(self.beat_at.min(next.max(now + Duration::from_micros(50)))));
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        match packet {
            Packet::Told(state) if state.version >= self.state.version => {
                let has_moved = state.views != self.state.views;
                self.state = state;
                if has_moved && !self.open.is_empty() {
                    self.ask(now, actions);
                }
            }
            Packet::Done { shard, client, request, step }
                if client == self.id && self.open.remove(&(shard, request)) =>
            {
                self.slowest = self.slowest.max(step);
                match request {
                    _ if !self.open.is_empty() => {}
                    Request::Push(number) => {
                        self.begin(Request::Pull(number));
                        self.ask(now, actions);
                    }
                    Request::Pull(_) => {
                        let thought = self.random.time(&(Duration::ZERO..self.thought));
                        (self.next_push, self.retry_at) = (now + thought, Duration::MAX);
                    }
                }
            }
            Packet::Stop => self.stops = true,
            _ => {}
        }
    }

    fn begin(&mut self, request: Request) {
        let shards = 0..self.state.views.len() as u32;
        self.open = shards.map(|shard| (shard, request)).collect();
    }

    fn ask(&mut self, now: Duration, actions: &mut Actions) {
        self.retry_at = now + RETRY;
        for (shard, request) in &self.open {
            let Some(server) = self.state.views[*shard as usize].primary() else { continue };
            let (shard, client, step) = (*shard, self.id, self.step);
            let packet = match *request {
                Request::Push(number) => {
                    let push = Push { client, number, step, parts: Vec::new() };
                    Packet::Push { shard, push }
                }
                Request::Pull(request) => {
                    let pull = Pull { client, request, after: self.pushed, rows: Vec::new() };
                    Packet::Pull { shard, pull }
                }
            };
            actions.push(send(server, packet));
        }
    }
}
