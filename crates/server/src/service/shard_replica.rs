//! Copy of a shard: its state machine and its tables.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_link::endpoint::Outbox;
use thinwire_member::Id;

use super::sessions::Sessions;
use crate::clocks::Pace;
use crate::configuration::{JobState, Layout};
use crate::error::Error;
use crate::message::Message;
use crate::peers::Peers;
use crate::reason::Request;
use crate::reports::Reports;
use crate::shard::{Action, Event, Options, Shard};
use crate::snapshot::{Captured, Task};
use crate::table::{MemoryLimit, Tables};
use crate::view::View;
use crate::wire::{FromServer, frames};
use crate::write::{Pull, Push, Write};

/// Largest size of the values of one answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Receivers of a shard's actions.
pub struct Effects<'a> {
    /// Messages to clients.
    pub out: &'a mut Outbox,
    /// Connections of the clients.
    pub sessions: &'a mut Sessions,
    /// Current time, by which clients' rates are limited.
    pub now: Instant,
    /// Messages to other servers.
    pub peers: &'a mut Peers,
    /// Reports to the coordinator.
    pub reports: &'a Reports,
}

/// Copy of a shard: its state machine and its tables.
#[derive(Debug)]
pub struct ShardReplica {
    number: u32,
    layout: Arc<Layout>,
    /// State machine of the copy.
    pub shard: Shard,
    /// Tables; `None` without a copy.
    tables: Option<Tables>,
    /// Tables that came with the snapshot message being handled.
    incoming: Option<Tables>,
    /// Memory limit of the tables, if there is one.
    limit: Option<MemoryLimit>,
    /// Reason why the copy is lost, if it is; events are ignored then.
    failure: Option<Error>,
    /// Tables with which a new shard begins; `None` if no row is written yet.
    pub restored: Option<Tables>,
    /// Number of applied updates.
    pub updates: u64,
    /// Number of acknowledged pushes.
    pub pushes: u64,
    /// Number of answered pulls.
    pub pulls: u64,
}

impl ShardReplica {
    /// Creates shard `number` on a server that is in none of its views.
    pub fn new(server: Id, number: u32, layout: &Arc<Layout>) -> ShardReplica {
        let shard = Shard::new(server, Options::new(layout.consistency));
        let layout = Arc::clone(layout);
        ShardReplica {
            number,
            layout,
            shard,
            tables: None,
            incoming: None,
            restored: None,
            limit: None,
            failure: None,
            updates: 0,
            pushes: 0,
            pulls: 0,
        }
    }

    /// Sets the memory limit of the tables.
    pub fn limit(&mut self, limit: MemoryLimit) {
        if self.limit.as_ref() == Some(&limit) {
            return;
        }
        let limited = self.tables.as_mut().map_or(Ok(()), |tables| tables.limit(&limit));
        self.limit = Some(limit);
        self.note(limited);
    }

    /// Returns why the copy is lost, if it is.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns whether this server has the copy that it had as a replica of this view.
    pub fn keeps(&self, view: &View) -> bool {
        self.failure.is_none() && self.shard.keeps(view)
    }

    fn note(&mut self, result: Result<(), Error>) {
        self.failure = self.failure.take().or(result.err());
    }

    /// Returns the tables, or `None` without a copy.
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }

    /// Handles a push. If it does not fit the tables, the client gets the reason.
    pub fn push(&mut self, push: Push, now: Duration, effects: &mut Effects<'_>) {
        // Without a copy of the shard here nothing can be checked; the client is told where the primary is.
        let checked = self.tables.as_ref().map_or(Ok(()), |tables| tables.check_push(&push.parts));
        match checked {
            Ok(()) => self.on(Event::Push(push), now, effects),
            Err(schema_error) => {
                let request = Request::Push(push.number);
                let text = schema_error.to_string();
                effects.tell(
                    push.client,
                    &FromServer::SchemaError { shard: self.number, request, text },
                );
            }
        }
    }

    /// Handles a pull. If it does not fit the tables, the client gets the reason.
    pub fn pull(&mut self, pull: Pull, now: Duration, effects: &mut Effects<'_>) {
        // Without tables, as for a push.
        match self.tables.as_ref().and_then(|tables| schema_error(tables, &pull)) {
            None => self.on(Event::Pull(pull), now, effects),
            Some(text) => {
                let request = Request::Pull(pull.request);
                effects.tell(
                    pull.client,
                    &FromServer::SchemaError { shard: self.number, request, text },
                );
            }
        }
    }

    /// Handles a message of another server. Returns false if it does not fit the tables.
    #[must_use]
    pub fn hear(
        &mut self,
        from: Id,
        message: Message,
        tables: &[u8],
        now: Duration,
        effects: &mut Effects<'_>,
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
                let Layout { shards, tables: options, .. } = &*self.layout;
                let pieces = &shards[self.number as usize];
                match Tables::read_from(tables, pieces, options, self.limit.as_ref()) {
                    Ok(None) => return false,
                    Ok(incoming) => self.incoming = incoming,
                    Err(error) => {
                        // The disk here has failed, and not the peer.
                        self.note(Err(error));
                        return true;
                    }
                }
            }
            Message::Have { .. } | Message::Superseded { .. } => {}
        }
        self.on(Event::Message { from, message }, now, effects);
        self.incoming = None;
        true
    }

    /// Passes an event to the shard and performs its actions.
    pub fn on(&mut self, event: Event, now: Duration, effects: &mut Effects<'_>) {
        if self.failure.is_some() {
            return;
        }
        let actions = self.shard.on(event, now);
        let done = self.perform_all(actions, effects);
        self.note(done);
    }

    fn perform_all(
        &mut self,
        actions: Vec<Action>,
        effects: &mut Effects<'_>,
    ) -> Result<(), Error> {
        // The state machine has a copy as of now; its tables begin here, unless they come from the primary.
        let begins = self.tables.is_none() && self.shard.committed().is_some();
        if begins && !actions.contains(&Action::Load) {
            let pieces = &self.layout.shards[self.number as usize];
            let new = || Tables::new(pieces, &self.layout.tables);
            let mut tables = self.restored.take().unwrap_or_else(new);
            self.limit.as_ref().map_or(Ok(()), |limit| tables.limit(limit))?;
            self.tables = Some(tables);
        }
        actions.into_iter().try_for_each(|action| self.perform(action, effects))
    }

    fn perform(&mut self, action: Action, effects: &mut Effects<'_>) -> Result<(), Error> {
        let shard = self.number;
        match action {
            Action::Forward { to, message } => return self.forward(to, message, effects),
            Action::Load => (self.tables, self.restored) = (self.incoming.take(), None),
            Action::Drop => self.tables = None,
            Action::Apply(write) => {
                self.updates += u64::from(matches!(*write, Write::Update { .. }));
                return self.tables.as_mut().map_or(Ok(()), |tables| tables.apply(&write));
            }
            Action::Acknowledge { client, number, pace } => {
                self.pushes += 1;
                effects.tell(client, &FromServer::Acknowledge { shard, number, pace });
            }
            Action::Delay { client, request, slowest } => {
                effects.tell(client, &FromServer::Delayed { shard, request, slowest });
            }
            Action::Refuse { client, request, reason } => {
                effects.tell(client, &FromServer::Refused { shard, request, reason });
            }
            Action::Answer { pull, pace, .. } => return self.answer(&pull, pace, effects),
            Action::Ready { view, learner } => effects.reports.ready(shard, view, learner),
            Action::Logged { snapshot, pushes } => {
                effects.reports.of_snapshot(snapshot, |report| report.logged(shard, &pushes));
            }
            Action::Capture { snapshot } => {
                let tables = self.tables_as_bytes()?;
                effects.reports.perform(Task::Write(Captured { snapshot, shard, tables }));
            }
            Action::Abandon { snapshot, missing } => {
                let reason = late(shard, missing);
                effects.reports.of_snapshot(snapshot, |report| report.fail(reason));
            }
        }
        Ok(())
    }

    fn forward(&self, to: Id, message: Message, effects: &mut Effects<'_>) -> Result<(), Error> {
        let Effects { peers, out, .. } = effects;
        peers.put(to, self.number, message, || self.tables_as_bytes(), out)
    }

    fn tables_as_bytes(&self) -> Result<Vec<u8>, Error> {
        self.tables.as_ref().map_or(Ok(Vec::new()), Tables::to_bytes)
    }

    fn answer(&mut self, pull: &Pull, pace: Pace, effects: &mut Effects<'_>) -> Result<(), Error> {
        let Some(tables) = &mut self.tables else { return Ok(()) };
        self.pulls += 1;
        let length = tables.answer_bytes(pull);
        let (shard, request, values) = (self.number, pull.request, Vec::new());
        let mut bytes = FromServer::Answer { shard, request, pace, values }.head(length);
        tables.answer(pull, &mut bytes)?;
        effects.send(pull.client, &bytes);
        Ok(())
    }
}

/// Returns the shards that no server of the epoch has and whose copies are here, with their last views.
pub fn recovered(replicas: &[ShardReplica], state: &JobState) -> Vec<(u32, u64)> {
    let kept = state.unavailable().filter_map(|shard| {
        let (replica, view) = (replicas.get(shard as usize)?, state.views.get(shard as usize)?);
        replica.keeps(view).then_some((shard, view.number))
    });
    kept.collect()
}

/// Returns the reason why a shard abandons a snapshot.
fn late(shard: u32, missing: Option<(Id, u64)>) -> String {
    match missing {
        Some((id, number)) => {
            format!("push {number} of worker {id} did not reach shard {shard} in time")
        }
        None => format!("shard {shard} got no frontier in time"),
    }
}

/// Returns why a pull does not fit the tables, in one line, or `None` if it does.
fn schema_error(tables: &Tables, pull: &Pull) -> Option<String> {
    if let Err(schema_error) = tables.check_pull(pull) {
        return Some(schema_error.to_string());
    }
    let bytes = tables.answer_bytes(pull);
    let is_long = bytes > ANSWER_BYTES_MAX;
    is_long.then(|| format!("pull of {bytes} bytes, expected at most {ANSWER_BYTES_MAX}"))
}

impl Effects<'_> {
    fn tell(&mut self, client: Id, message: &FromServer) {
        self.send(client, &message.to_bytes());
    }

    fn send(&mut self, client: Id, message: &[u8]) {
        // A client without a connection repeats its request after reconnecting.
        let Some(connection) = self.sessions.connection(client) else { return };
        frames(message).for_each(|frame| self.out.send(connection, &frame));
        if self.sessions.count(connection, message.len(), self.now) {
            self.out.hold(connection);
        }
    }
}

#[cfg(test)]
impl ShardReplica {
    /// Returns the tables of a copy, for tests that damage them.
    pub fn tables_mut(&mut self) -> &mut Tables {
        self.tables.as_mut().unwrap()
    }
}
