//! Coordinator with saved state, which decides epochs from beats and everything else by `Configuration`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_job::elastic::{Role, ViewService};
use thinwire_member::Id;
use thinwire_server::{Configuration, Definition, ViewRequest};
use thinwire_testkit::net::{Action, Event};

use crate::ledger::Ledger;
use crate::node::{Actions, BEAT, Packet, SILENCE, node, send};

/// State that outlives the coordinator.
#[derive(Default)]
pub struct Saved {
    pub configuration: Configuration,
    /// Members and number of the last epoch, by role.
    epochs: BTreeMap<bool, (u32, Vec<Id>)>,
}

pub struct Coordinator {
    saved: Rc<RefCell<Saved>>,
    ledger: Rc<RefCell<Ledger>>,
    /// Number of workers with which the job begins.
    workers: usize,
    heard: BTreeMap<Id, Duration>,
}

impl Coordinator {
    pub fn new(
        (saved, ledger): (Rc<RefCell<Saved>>, Rc<RefCell<Ledger>>),
        (definition, workers): (&Definition, usize),
        now: Duration,
    ) -> Coordinator {
        let heard = {
            let Saved { configuration, epochs } = &mut *saved.borrow_mut();
            // State that is not saved is lost.
            let state = configuration.state();
            *configuration = Configuration::new();
            configuration.restore(&state).unwrap();
            let define = ViewRequest::Define(definition.clone()).to_bytes();
            configuration.request(Id(1), &define).unwrap();
            epochs.values().flat_map(|(_, ids)| ids.clone()).map(|id| (id, now)).collect()
        };
        Coordinator { saved, ledger, workers, heard }
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        match event {
            Event::Boot => actions.push(Action::Wake(now + BEAT)),
            Event::Wake => {
                self.heard.retain(|_, heard| now < *heard + SILENCE);
                actions.push(Action::Wake(now + BEAT));
            }
            Event::Closed { peer } => self.heard.retain(|id, _| node(*id) != peer),
            Event::Message { message, .. } | Event::Order(message) => {
                self.hear(message, now, &mut actions);
            }
        }
        self.decide();
        let saved = self.saved.borrow();
        self.ledger.borrow_mut().sees(saved.configuration.job_state());
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        let saved = Rc::clone(&self.saved);
        let request = |from, request: ViewRequest| {
            saved.borrow_mut().configuration.request(from, &request.to_bytes())
        };
        match packet {
            Packet::Beat { id } => {
                self.heard.insert(id, now);
                if id.is_server() {
                    request(id, ViewRequest::Address(format!("host-{id}:1"))).unwrap();
                }
                let state = Rc::new(saved.borrow().configuration.job_state().clone());
                actions.push(send(id, Packet::Told(state)));
            }
            Packet::Leave { id } => drop(self.heard.remove(&id)),
            // A late report may be void or refused.
            Packet::Ask { from, request: asked } => drop(request(from, asked)),
            Packet::Snapshot => {
                let state = saved.borrow().configuration.job_state().clone();
                let number = state.snapshot.map_or(1, |last| last.number + 1);
                drop(request(Id(1), ViewRequest::Snapshot { number }));
            }
            _ => {}
        }
    }

    /// Begins epochs of the processes that are alive.
    fn decide(&mut self) {
        for is_server in [false, true] {
            let ids = self.heard.keys().copied().filter(|id| id.is_server() == is_server);
            let ids: Vec<Id> = ids.collect();
            let Saved { configuration, epochs } = &mut *self.saved.borrow_mut();
            let (number, members) = epochs.entry(is_server).or_default();
            let waits = *number == 0 && !is_server && ids.len() < self.workers;
            if *members == ids || waits {
                continue;
            }
            (*number, *members) = (*number + 1, ids.clone());
            let role = if is_server { Role::Server } else { Role::Worker };
            configuration.started(role, *number, &ids);
        }
    }
}
