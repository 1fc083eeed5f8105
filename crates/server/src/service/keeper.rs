//! One copy of a shard with its tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thinwire_link::service::Outbox;
use thinwire_member::Id;

use super::visitors::Visitors;
use crate::configuration::Layout;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::reason::Request;
use crate::reports::Reports;
use crate::shard::{Action, Event, Options, Shard};
use crate::table::Tables;
use crate::wire::{FromServer, answer_head, frames};
use crate::write::{Pull, Push, Write};

/// Most values of one answer.
pub const ANSWER_VALUES_MAX: usize = 1 << 18;

/// Ways out of a server.
pub struct Exits<'a> {
    /// To clients.
    pub out: &'a mut Outbox,
    /// Connections of the clients.
    pub visitors: &'a Visitors,
    /// To other servers.
    pub mailboxes: &'a BTreeMap<Id, Arc<Mailbox>>,
    /// To the coordinator.
    pub reports: &'a Reports,
}

/// Copy of a shard with its tables.
#[derive(Debug)]
pub struct Keeper {
    number: u32,
    layout: Arc<Layout>,
    /// The state machine.
    pub shard: Shard,
    /// Tables; none without a copy.
    tables: Option<Tables>,
    /// Tables of the snapshot that the shard is told of.
    incoming: Option<Tables>,
    /// Number of writes of workers that were applied.
    pub updates: u64,
    /// Number of pushes that were acknowledged.
    pub pushes: u64,
    /// Number of pulls that were answered.
    pub pulls: u64,
}

impl Keeper {
    /// The shard `number` on a server that has no part in it yet.
    pub fn new(server: Id, number: u32, layout: &Arc<Layout>) -> Keeper {
        let shard = Shard::new(server, Options::new(layout.consistency));
        let layout = Arc::clone(layout);
        Keeper {
            number,
            layout,
            shard,
            tables: None,
            incoming: None,
            updates: 0,
            pushes: 0,
            pulls: 0,
        }
    }

    /// Returns the tables; none without a copy.
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }

    /// Takes a push, or tells its client why the tables do not take it.
    pub fn push(&mut self, push: Push, now: Duration, exits: &mut Exits<'_>) {
        let checked = self.tables.as_ref().map_or(Ok(()), |tables| tables.check_push(&push.parts));
        match checked {
            Ok(()) => self.on(Event::Push(push), now, exits),
            Err(misfit) => {
                let request = Request::Push(push.number);
                let text = misfit.to_string();
                exits.tell(push.client, &FromServer::Misfit { shard: self.number, request, text });
            }
        }
    }

    /// Takes a pull, or tells its client why the tables do not answer it.
    pub fn pull(&mut self, pull: Pull, now: Duration, exits: &mut Exits<'_>) {
        match self.tables.as_ref().and_then(|tables| misfit(tables, &pull)) {
            None => self.on(Event::Pull(pull), now, exits),
            Some(text) => {
                let request = Request::Pull(pull.request);
                exits.tell(pull.client, &FromServer::Misfit { shard: self.number, request, text });
            }
        }
    }

    /// Takes a message of another server; false if it does not fit the tables.
    #[must_use]
    pub fn hear(
        &mut self,
        from: Id,
        (message, tables): (Message, &[u8]),
        now: Duration,
        exits: &mut Exits<'_>,
    ) -> bool {
        match &message {
            Message::Forward { entries, .. } => {
                let fits = |tables: &Tables| {
                    entries.iter().all(|entry| match &*entry.write {
                        Write::Update { parts, .. } => tables.check_push(parts).is_ok(),
                        Write::Workers(_) => true,
                    })
                };
                if !self.tables.as_ref().is_none_or(fits) {
                    return false;
                }
            }
            Message::Snapshot { .. } => {
                let pieces = &self.layout.shards[self.number as usize];
                self.incoming = Tables::read_from(tables, pieces, &self.layout.tables);
                if self.incoming.is_none() {
                    return false;
                }
            }
            Message::Have { .. } | Message::Superseded { .. } => {}
        }
        self.on(Event::Message { from, message }, now, exits);
        self.incoming = None;
        true
    }

    /// Tells the shard of an event, and does what it says.
    pub fn on(&mut self, event: Event, now: Duration, exits: &mut Exits<'_>) {
        let actions = self.shard.on(event, now);
        let begins = self.tables.is_none() && self.shard.committed().is_some();
        if begins && !actions.contains(&Action::Load) {
            let pieces = &self.layout.shards[self.number as usize];
            self.tables = Some(Tables::new(pieces, &self.layout.tables));
        }
        actions.into_iter().for_each(|action| self.perform(action, exits));
    }

    fn perform(&mut self, action: Action, exits: &mut Exits<'_>) {
        let shard = self.number;
        match action {
            Action::Forward { to, message } => self.forward(to, message, exits),
            Action::Load => self.tables = self.incoming.take(),
            Action::Drop => self.tables = None,
            Action::Apply(write) => {
                self.updates += u64::from(matches!(*write, Write::Update { .. }));
                self.tables.iter_mut().for_each(|tables| tables.apply(&write));
            }
            Action::Acknowledge { client, number } => {
                self.pushes += 1;
                exits.tell(client, &FromServer::Acknowledge { shard, number });
            }
            Action::Refuse { client, request, reason } => {
                exits.tell(client, &FromServer::Refused { shard, request, reason });
            }
            Action::Answer { pull, version } => self.answer(&pull, version, exits),
            Action::Ready { view, learner } => exits.reports.ready(shard, view, learner),
        }
    }

    fn forward(&self, to: Id, message: Message, exits: &Exits<'_>) {
        let Some(mailbox) = exits.mailboxes.get(&to) else { return };
        mailbox.put(self.number, message, || {
            let mut bytes = Vec::new();
            self.tables.iter().for_each(|tables| tables.write(&mut bytes));
            bytes
        });
    }

    fn answer(&mut self, pull: &Pull, version: u64, exits: &mut Exits<'_>) {
        let Some(tables) = &self.tables else { return };
        self.pulls += 1;
        let values = tables.values(pull);
        let mut bytes = answer_head(self.number, pull.request, version, values);
        tables.answer(pull, &mut bytes);
        exits.send(pull.client, &bytes);
    }
}

/// Returns why the tables do not answer a pull in one line, if they do not.
fn misfit(tables: &Tables, pull: &Pull) -> Option<String> {
    if let Err(misfit) = tables.check_pull(pull) {
        return Some(misfit.to_string());
    }
    let values = tables.values(pull);
    let is_long = values > ANSWER_VALUES_MAX;
    is_long.then(|| format!("pull of {values} values, expected at most {ANSWER_VALUES_MAX}"))
}

impl Exits<'_> {
    fn tell(&mut self, client: Id, message: &FromServer) {
        self.send(client, &message.to_bytes());
    }

    fn send(&mut self, client: Id, message: &[u8]) {
        // Whoever is gone asks again when it is back.
        if let Some(connection) = self.visitors.connection(client) {
            frames(message).for_each(|frame| self.out.send(connection, &frame));
        }
    }
}
