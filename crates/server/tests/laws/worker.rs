//! Worker: pulls, waits, pushes, and repeats unanswered requests.

use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{Part, Pull, Push, Reason, View};
use thinwire_testkit::net::{Action, Event, Random};

use crate::ledger::{ROWS, gradient};
use crate::node::{Actions, BEAT, COORDINATOR, Packet, send};

/// Time after which an unanswered request is repeated.
const RETRY: Duration = Duration::from_millis(9);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Thinking { until: Duration },
    Pulling { request: u64 },
    Pushing,
    Done,
}

#[derive(Debug)]
pub struct Worker {
    pub id: Id,
    /// Number of acknowledged pushes.
    pub pushed: u64,
    /// Step of the last push.
    step: u64,
    /// Step of the slowest worker, as far as answers have reported it.
    slowest: u64,
    phase: Phase,
    stops: bool,
    view: Option<View>,
    requests: u64,
    /// Longest time between a push and the next pull.
    thought: Duration,
    random: Random,
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
            phase: Phase::Thinking { until: now },
            stops: false,
            view: None,
            requests: 0,
            thought,
            random,
            beat_at: now,
            retry_at: Duration::MAX,
        }
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        if let Event::Message { message, .. } | Event::Order(message) = event {
            self.hear(message, now, &mut actions);
        }
        match self.phase {
            Phase::Done => return actions,
            Phase::Thinking { until } if now >= until && self.view.is_some() => {
                self.requests += 1;
                self.phase = Phase::Pulling { request: self.requests };
                self.ask(now, &mut actions);
            }
            _ if now >= self.retry_at => self.ask(now, &mut actions),
            _ => {}
        }
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            let beat = Packet::Beat { id: self.id, is_worker: true };
            actions.push(Action::Send { to: COORDINATOR, message: beat });
        }
        let until = match self.phase {
            Phase::Thinking { until } if until > now => until,
            _ => Duration::MAX,
        };
        actions.push(Action::Wake(self.beat_at.min(self.retry_at).min(until)));
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        match packet {
            Packet::Told { view, .. }
                if self.view.as_ref().is_none_or(|known| known.number < view.number) =>
            {
                self.view = Some(view);
                if self.retry_at < Duration::MAX {
                    self.ask(now, actions);
                }
            }
            Packet::Answer { client, request, step }
                if client == self.id && self.phase == (Phase::Pulling { request }) =>
            {
                self.slowest = self.slowest.max(step);
                (self.phase, self.step) = (Phase::Pushing, self.step.max(self.slowest) + 1);
                self.ask(now, actions);
            }
            Packet::Acknowledge { client, number, step }
                if client == self.id
                    && number == self.pushed + 1
                    && self.phase == Phase::Pushing =>
            {
                (self.pushed, self.slowest) = (number, self.slowest.max(step));
                let until = now + self.random.time(&(Duration::ZERO..self.thought));
                (self.phase, self.retry_at) = (Phase::Thinking { until }, Duration::MAX);
                self.stop_if_told(actions);
            }
            Packet::Refuse { client, reason: Reason::Early { expected }, .. }
                if client == self.id =>
            {
                panic!("{self:?} was told to push {expected}");
            }
            Packet::Stop => {
                self.stops = true;
                self.stop_if_told(actions);
            }
            _ => {}
        }
    }

    /// Ends between two steps, when every push is acknowledged.
    fn stop_if_told(&mut self, actions: &mut Actions) {
        if self.stops && self.pushed > 0 && matches!(self.phase, Phase::Thinking { .. }) {
            self.phase = Phase::Done;
            let leave = Packet::Leave { id: self.id };
            actions.push(Action::Send { to: COORDINATOR, message: leave });
        }
    }

    fn ask(&mut self, now: Duration, actions: &mut Actions) {
        self.retry_at = now + RETRY;
        let Some(view) = &self.view else { return };
        // Sometimes it asks a server that is not the primary.
        let servers = if self.random.chance(0.05) { view.replicas.len() as u64 } else { 1 };
        let Some(server) = view.replicas.get(self.random.below(servers) as usize) else { return };
        let packet = match self.phase {
            Phase::Pulling { request } => {
                let rows = vec![(0, (0..ROWS as u64).collect())];
                Packet::Pull(Pull { client: self.id, request, after: self.pushed, rows })
            }
            Phase::Pushing => Packet::Push(push((self.id, self.pushed + 1), self.step)),
            Phase::Thinking { .. } | Phase::Done => return,
        };
        actions.push(send(*server, packet));
    }
}

fn push((client, number): (Id, u64), step: u64) -> Push {
    let (rows, gradient): (Vec<u64>, Vec<f32>) = gradient(client, number).into_iter().unzip();
    let parts = if rows.is_empty() {
        vec![]
    } else {
        vec![Part { table: 0, rows, gradient: gradient.into() }]
    };
    Push { client, number, step, parts }
}
