//! The coordinator as a service: roster and store behind one port.
//!
//! A connection belongs to a process once the process has joined over it. The roster answers each
//! heartbeat with everything that the process does not have yet. So this service need not repeat
//! messages, or keep them for a process that is not connected.

mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use thinwire_link as link;
use thinwire_link::endpoint::{ClientId, Node, Outbox};
use thinwire_link::store::KeyValueService;
use thinwire_member::{Id, Message, Note, Reason, RosterAction, RosterEvent};

use super::envelope::{End, REQUEST_BYTES_MAX, Reply, Request, VIEWS_MESSAGE_BYTES_MAX};
use super::event::Event;
use super::job_spec::JobSpec;
use super::persistence::Persistence;
use super::role::Role;
use super::roles::RoleRegistry;
use super::status;

/// Id under which operators ask the roster; no process has it.
pub const OPERATOR: Id = Id(0);
/// Answer to servers, and to requests for views, in a job without servers.
const NO_SERVERS: &str = "the job has no servers: its coordinator was started without servers";

/// Callback for events.
pub type Tell = Box<dyn FnMut(&Event) + Send>;

/// State machine of the coordinator's port.
pub struct CoordinatorService {
    roles: RoleRegistry,
    persistence: Persistence,
    store: KeyValueService,
    processes: BTreeMap<ClientId, Id>,
    clients: BTreeMap<Id, ClientId>,
    end: Option<End>,
    /// Operators that have read the state of the job.
    watchers: BTreeSet<ClientId>,
    target: Arc<AtomicU32>,
    tell: Tell,
    /// Time zero of the rosters.
    base: Instant,
}

impl CoordinatorService {
    pub fn new(
        roles: RoleRegistry,
        persistence: Persistence,
        target: Arc<AtomicU32>,
        tell: Tell,
        base: Instant,
    ) -> CoordinatorService {
        target.store(roles.workers.coordinator_state.target(), Ordering::Relaxed);
        CoordinatorService {
            roles,
            store: KeyValueService::new(),
            processes: BTreeMap::new(),
            clients: BTreeMap::new(),
            end: persistence.over(),
            persistence,
            watchers: BTreeSet::new(),
            target,
            tell,
            base,
        }
    }

    /// Notes that a process has ended.
    pub fn ended(&mut self, id: Id, now: Instant, out: &mut Outbox) {
        self.decide(Role::of(id), RosterEvent::Ended(id), now, out);
    }

    /// Sets the number of ranks that the job should have.
    ///
    /// # Errors
    /// If the job's limits exclude it, the job has not begun or is over, or its state cannot be saved. The
    /// error is a text that says why.
    pub fn resize(&mut self, target: u32, now: Instant, out: &mut Outbox) -> Result<(), String> {
        match self.decide(Role::Worker, RosterEvent::Resize { id: OPERATOR, target }, now, out) {
            Some(Message::Refuse(Reason::Size { found, min, max })) => {
                Err(format!("{found} ranks, expected {min} to {max}"))
            }
            // Also if that many are wanted already: a launcher then starts those that have left.
            Some(_) => {
                (self.tell)(&Event::resized(target));
                Ok(())
            }
            None => {
                Err("the job has not begun or is over, or its state cannot be saved".to_owned())
            }
        }
    }

    /// Ends the job: from now on no epoch is formed.
    pub fn finish(&mut self, end: End, out: &mut Outbox) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.persistence.finish(end);
        (self.tell)(&Event::over(end));
        for client in self.processes.keys().chain(&self.watchers) {
            out.send(*client, &Reply::End(end).to_bytes());
        }
    }

    fn roster_now(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.base)
    }

    /// Passes an event to the roster of a role and carries out its actions; returns the answer to an
    /// operator.
    fn decide(
        &mut self,
        role: Role,
        event: RosterEvent,
        now: Instant,
        out: &mut Outbox,
    ) -> Option<Message> {
        if self.end.is_some() || self.persistence.is_superseded() {
            return None;
        }
        let at = self.roster_now(now);
        let actions = self.roles.of(role)?.coordinator_state.on(event, at);
        // Before anything is saved, so that an epoch and the views of it are saved together.
        self.roles.note_epochs();
        self.roles.note_deaths(at);
        let answer = self.perform(role, actions, out);
        self.publish(None, out);
        self.target.store(self.roles.workers.coordinator_state.target(), Ordering::Relaxed);
        answer
    }

    fn perform(
        &mut self,
        role: Role,
        actions: Vec<RosterAction>,
        out: &mut Outbox,
    ) -> Option<Message> {
        let mut answer = None;
        // A state that could not be saved is saved first: others must not hear of what follows from it.
        if !actions.is_empty() && self.persistence.is_due() && !self.save() {
            return None;
        }
        for action in actions {
            match action {
                // Nothing that follows may be known to others before the state is saved.
                RosterAction::Save if !self.save() => return None,
                RosterAction::Save => {}
                RosterAction::Send { to: OPERATOR, message } => answer = Some(message),
                RosterAction::Send { to, message } => self.send(to, message, out),
                RosterAction::Say(note) => self.say(role, &note),
            }
        }
        answer
    }

    fn save(&mut self) -> bool {
        let Some(state) = self.roles.save() else { return true };
        let saved = self.persistence.save(&state);
        match &saved {
            Ok(()) => self.roles.views().into_iter().for_each(|views| views.saved()),
            Err(event) => event.iter().for_each(|event| (self.tell)(event)),
        }
        saved.is_ok()
    }

    fn send(&mut self, to: Id, message: Message, out: &mut Outbox) {
        if let Message::Propose { epoch, .. } = &message {
            let role_state = self.roles.of(Role::of(to));
            role_state.into_iter().for_each(|role_state| role_state.proposed(epoch.number));
        }
        if let Some(client) = self.clients.get(&to) {
            out.send(*client, &Reply::Member(message).to_bytes());
        }
    }

    fn say(&mut self, role: Role, note: &Note) {
        let Some(role_state) = self.roles.of(role) else { return };
        (self.tell)(&match role {
            Role::Worker => Event::of(note, role_state.epoch()),
            Role::Server => Event::of_servers(note, role_state.epoch()),
        });
        if let Note::Started { .. } = note {
            for prefix in role_state.forget_epochs() {
                self.store.remove_under(&prefix);
            }
            role_state.forget_processes(|id| self.clients.contains_key(id));
        }
    }

    fn answer(
        &mut self,
        client: ClientId,
        request: Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), link::Error> {
        match request {
            Request::Join { id, .. } if id == OPERATOR || self.processes.contains_key(&client) => {
                let context =
                    format!("wanted to join as {id}, expected a single id other than zero");
                return Err(link::Error::new(link::Kind::Corrupt, context));
            }
            Request::Join { id, spec } => self.join(client, id, spec, now, out),
            Request::Status => {
                self.watchers.insert(client);
                let json = status::describe(&self.roles, self.end, now);
                out.send(client, &Reply::Status(json).to_bytes());
            }
            Request::Resize(target) => {
                let reply = match self.resize(target, now, out) {
                    Ok(()) => Reply::Resized(target),
                    Err(reason) => Reply::Refused(reason),
                };
                out.send(client, &reply.to_bytes());
            }
            Request::Views { from, request } => self.answer_views(client, from, &request, out),
            request => {
                let Some(id) = self.processes.get(&client).copied() else {
                    let context = "sent a message of a member before it joined";
                    return Err(link::Error::new(link::Kind::Corrupt, context));
                };
                self.answer_process(client, id, request, now, out);
            }
        }
        Ok(())
    }

    fn join(&mut self, client: ClientId, id: Id, spec: JobSpec, now: Instant, out: &mut Outbox) {
        let at = self.roster_now(now);
        let objection = match self.roles.of(Role::of(id)) {
            Some(role_state) => role_state.objection(&spec),
            None => Some((NO_SERVERS.to_owned(), NO_SERVERS.to_owned())),
        };
        if let Some((here, there)) = objection {
            (self.tell)(&Event::refused(id, &there));
            return out.send(client, &Reply::Refused(here).to_bytes());
        }
        // A process that comes back may be here before the end of its last connection is.
        if let Some(before) = self.clients.insert(id, client).filter(|before| *before != client) {
            self.processes.remove(&before);
            out.close(before);
        }
        self.processes.insert(client, id);
        // A role that the job does not have was refused above.
        let Some(role_state) = self.roles.of(Role::of(id)) else { return };
        role_state.joined(id, spec, now, at);
        let silence = role_state.coordinator_state.options().silence;
        let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        let coordinator = role_state.coordinator_state.id();
        out.send(client, &Reply::Welcome { coordinator, silence_ms }.to_bytes());
        // A process that joins after the job's end hears nothing from a roster any more.
        if let Some(end) = self.end {
            out.send(client, &Reply::End(end).to_bytes());
        }
    }

    fn answer_process(
        &mut self,
        client: ClientId,
        id: Id,
        request: Request,
        now: Instant,
        out: &mut Outbox,
    ) {
        let role = Role::of(id);
        let Some(role_state) = self.roles.of(role) else { return };
        match request {
            Request::Member(Message::Report(report)) => {
                role_state.heard(id, &report, now);
                self.decide(role, RosterEvent::Report { id, report }, now, out);
            }
            Request::Member(Message::Bye) => {
                self.decide(role, RosterEvent::Ended(id), now, out);
                // The process waits for this, so that its farewell is not lost with the connection.
                out.close(client);
            }
            Request::Figures(json) => {
                if let Some(known) = role_state.known.get_mut(&id) {
                    known.figures = serde_json::from_str(&json).ok();
                }
            }
            Request::Complete => self.finish(End::Complete, out),
            _ => {}
        }
    }
}

impl Node for CoordinatorService {
    fn opened(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.store.opened(client, now, out);
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), link::Error> {
        if KeyValueService::is_request(message) {
            return self.store.received(client, message, now, out);
        }
        self.answer(client, Request::parse(message)?, now, out)
    }

    fn closed(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.store.closed(client, now, out);
        self.watchers.remove(&client);
        self.roles.views().into_iter().for_each(|views| views.closed(client));
        let Some(id) = self.processes.remove(&client) else { return };
        self.clients.remove(&id);
        self.decide(Role::of(id), RosterEvent::Closed(id), now, out);
        let Some(role_state) = self.roles.of(Role::of(id)) else { return };
        role_state.known.get_mut(&id).into_iter().for_each(|known| known.heard = None);
        role_state.forget_processes(|id| self.clients.contains_key(id));
    }

    fn deadline(&self) -> Option<Instant> {
        let roster = self.roles.deadline().filter(|_| self.end.is_none());
        let roster = roster.and_then(|deadline| self.base.checked_add(deadline));
        [self.store.deadline(), roster].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        if self.store.deadline().is_some_and(|deadline| now >= deadline) {
            self.store.tick(now, out);
        }
        for role in [Role::Worker, Role::Server] {
            if self.roles.of(role).is_some_and(|role_state| role_state.has_begun) {
                self.decide(role, RosterEvent::Tick, now, out);
            }
        }
    }

    fn message_bytes_max(&self) -> usize {
        let views = self.roles.servers.as_ref().map_or(0, |_| VIEWS_MESSAGE_BYTES_MAX);
        REQUEST_BYTES_MAX.max(self.store.message_bytes_max()).max(views)
    }
}
