//! Coordinator with saved state, which decides epochs from beats and views by `View::next`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{Change, View, Workers};
use thinwire_testkit::net::{Action, Event};

use crate::node::{Actions, BEAT, Packet, SILENCE, node, send};

/// State that outlives the coordinator.
#[derive(Default)]
pub struct Saved {
    pub epoch: u32,
    pub members: Vec<Id>,
    pub target: Vec<Id>,
    pub view: Option<View>,
    pub workers: Workers,
    /// Whether no replica of the last view is in the epoch.
    pub is_unavailable: bool,
    /// Number of times that a replica of such a view came back.
    pub returns: u64,
}

pub struct Coordinator {
    pub saved: Rc<RefCell<Saved>>,
    copies: usize,
    heard: BTreeMap<Id, Duration>,
}

impl Coordinator {
    pub fn new(saved: Rc<RefCell<Saved>>, copies: usize, now: Duration) -> Coordinator {
        let known: Vec<Id> = {
            let saved = saved.borrow();
            saved.members.iter().chain(&saved.workers.ids).copied().collect()
        };
        Coordinator { saved, copies, heard: known.into_iter().map(|id| (id, now)).collect() }
    }

    pub fn on(&mut self, event: Event<Packet>, now: Duration) -> Actions {
        let mut actions = Vec::new();
        match event {
            Event::Boot => actions.push(Action::Wake(now + BEAT)),
            Event::Wake => {
                self.heard.retain(|_, heard| now < *heard + SILENCE);
                self.exclude();
                actions.push(Action::Wake(now + BEAT));
            }
            Event::Closed { peer } => {
                self.heard.retain(|id, _| node(*id) != peer);
                self.exclude();
            }
            Event::Message { message, .. } | Event::Order(message) => {
                self.hear(message, now, &mut actions);
            }
        }
        actions
    }

    fn hear(&mut self, packet: Packet, now: Duration, actions: &mut Actions) {
        match packet {
            Packet::Beat { id, is_worker } => {
                self.heard.insert(id, now);
                self.admit(id, is_worker);
                let saved = self.saved.borrow();
                if let Some(view) = saved.view.clone() {
                    let workers = saved.workers.clone();
                    let is_unavailable = saved.is_unavailable;
                    actions.push(send(id, Packet::Told { view, workers, is_unavailable }));
                }
            }
            Packet::Leave { id } => {
                self.heard.remove(&id);
                self.exclude();
            }
            Packet::Kept { id, view } => self.take_back(id, view),
            Packet::Ready { view, learner } => self.decide(Some((view, learner))),
            Packet::Move => {
                self.turn();
                self.decide(None);
            }
            _ => {}
        }
    }

    fn admit(&mut self, id: Id, is_worker: bool) {
        let mut saved = self.saved.borrow_mut();
        if is_worker {
            if !saved.workers.ids.contains(&id) {
                saved.workers.ids.push(id);
                saved.workers.version += 1;
            }
        } else if !saved.members.contains(&id) {
            saved.members.push(id);
            saved.epoch += 1;
            drop(saved);
            self.decide(None);
        }
    }

    fn exclude(&mut self) {
        let mut saved = self.saved.borrow_mut();
        let (members, workers) = (saved.members.len(), saved.workers.ids.len());
        saved.members.retain(|id| self.heard.contains_key(id));
        saved.workers.ids.retain(|id| self.heard.contains_key(id));
        saved.workers.version += u64::from(saved.workers.ids.len() != workers);
        if saved.members.len() != members {
            saved.epoch += 1;
            drop(saved);
            self.decide(None);
        }
    }

    /// Takes the shard up again if a replica of its last view has it.
    fn take_back(&mut self, id: Id, number: u64) {
        let mut saved = self.saved.borrow_mut();
        let is_replica = |view: &View| view.number == number && view.replicas.contains(&id);
        let is_last = saved.view.as_ref().is_some_and(is_replica);
        if saved.is_unavailable && is_last && saved.members.contains(&id) {
            saved.is_unavailable = false;
            saved.returns += 1;
        }
        drop(saved);
        self.decide(None);
    }

    /// Chooses other servers for the shard.
    fn turn(&mut self) {
        let mut saved = self.saved.borrow_mut();
        if !saved.target.is_empty() {
            saved.target.rotate_left(1);
        }
        let other = saved.members.iter().copied().find(|id| !saved.target.contains(id));
        if let (Some(other), Some(last)) = (other, saved.target.last_mut()) {
            *last = other;
        }
    }

    fn decide(&mut self, ready: Option<(u64, Id)>) {
        let saved = &mut *self.saved.borrow_mut();
        let Saved { epoch, members, target, view, is_unavailable, .. } = saved;
        target.retain(|id| members.contains(id));
        let others = members.iter().filter(|id| !target.contains(id)).copied().collect::<Vec<_>>();
        target.extend(others.into_iter().take(self.copies.saturating_sub(target.len())));
        let Some(before) = view else {
            if target.len() == self.copies {
                *view = Some(View::found(*epoch, target));
            }
            return;
        };
        if *is_unavailable {
            return;
        }
        match before.next(&Change { epoch: *epoch, members, target, ready }) {
            Ok(Some(next)) => *view = Some(next),
            Ok(None) => {}
            // One of the replicas may only be silent.
            Err(_) => *is_unavailable = true,
        }
    }
}
