//! The coordinator as a service: roster and store behind one port.
//!
//! A connection belongs to a process once this has joined. Everything that a process has to know comes
//! from the roster, which answers each beat with whatever is missing, so that nothing here is repeated
//! or remembered for a process that is away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use thinwire_link as link;
use thinwire_link::service::{ClientId, Outbox, Service};
use thinwire_link::store::KeyValueService;
use thinwire_member::{Id, Message, Note, Reason, RosterAction, RosterEvent};

use super::authority::Authority;
use super::envelope::{End, REQUEST_BYTES_MAX, Reply, Request};
use super::event::Event;
use super::facts::Facts;
use super::saving::Saving;
use super::status::{self, Known};

/// Name under which operators ask the roster; no process has it.
pub const OPERATOR: Id = Id(0);
/// Epochs whose keys are kept in the store: some process may still be on its way to one of them.
const EPOCHS_KEPT: usize = 4;

/// Callback for events.
pub type Tell = Box<dyn FnMut(&Event) + Send>;

/// State machine of the coordinator's port.
pub struct CoordinatorService {
    authority: Authority,
    saving: Saving,
    store: KeyValueService,
    /// Facts of the job, once a process with its fingerprint has joined.
    facts: Option<Facts>,
    processes: BTreeMap<ClientId, Id>,
    clients: BTreeMap<Id, ClientId>,
    known: BTreeMap<Id, Known>,
    /// Numbers of the epochs whose keys may be in the store.
    epochs: BTreeSet<u32>,
    /// There is somebody to wait for: before, no news is worth telling.
    has_begun: bool,
    end: Option<End>,
    /// Operators that have looked at the job.
    watchers: BTreeSet<ClientId>,
    target: Arc<AtomicU32>,
    tell: Tell,
    silence: Duration,
    /// Time zero of the roster.
    base: Instant,
}

impl CoordinatorService {
    pub fn new(
        authority: Authority,
        saving: Saving,
        target: Arc<AtomicU32>,
        tell: Tell,
        base: Instant,
    ) -> CoordinatorService {
        target.store(authority.target(), Ordering::Relaxed);
        CoordinatorService {
            silence: authority.options().silence,
            has_begun: authority.roster().is_some_and(|roster| roster.epoch().is_some()),
            authority,
            store: KeyValueService::new(),
            facts: None,
            processes: BTreeMap::new(),
            clients: BTreeMap::new(),
            known: BTreeMap::new(),
            epochs: BTreeSet::new(),
            end: saving.over(),
            saving,
            watchers: BTreeSet::new(),
            target,
            tell,
            base,
        }
    }

    /// Notes that a process has ended.
    pub fn ended(&mut self, id: Id, now: Instant, out: &mut Outbox) {
        self.decide(RosterEvent::Ended(id), now, out);
    }

    /// Sets the number of ranks that are wanted.
    ///
    /// # Errors
    /// If the job's limits exclude it: a text.
    pub fn resize(&mut self, target: u32, now: Instant, out: &mut Outbox) -> Result<(), String> {
        let before = self.authority.target();
        match self.decide(RosterEvent::Resize { id: OPERATOR, target }, now, out) {
            Some(Message::Refuse(Reason::Size { found, min, max })) => {
                Err(format!("{found} ranks, expected {min} to {max}"))
            }
            Some(_) if target != before => {
                (self.tell)(&Event::resized(target));
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err("the job has not begun, or its state cannot be saved".to_owned()),
        }
    }

    /// Ends the job: from now on no epoch is formed.
    pub fn finish(&mut self, end: End, out: &mut Outbox) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.saving.finish(end);
        (self.tell)(&Event::over(end));
        for client in self.processes.keys().chain(&self.watchers) {
            out.send(*client, &Reply::End(end).to_bytes());
        }
    }

    fn roster_now(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.base)
    }

    /// Hands an event to the roster and does what it decides; returns its answer to an operator.
    fn decide(&mut self, event: RosterEvent, now: Instant, out: &mut Outbox) -> Option<Message> {
        if self.end.is_some() || self.saving.is_superseded() {
            return None;
        }
        let at = self.roster_now(now);
        let actions = self.authority.on(event, at);
        let answer = self.perform(actions, out);
        self.target.store(self.authority.target(), Ordering::Relaxed);
        answer
    }

    fn perform(&mut self, actions: Vec<RosterAction>, out: &mut Outbox) -> Option<Message> {
        let mut answer = None;
        if !actions.is_empty() && self.saving.is_due() && !self.save() {
            return None;
        }
        for action in actions {
            match action {
                // Nothing that follows may be known to others before the state is saved.
                RosterAction::Save if !self.save() => return None,
                RosterAction::Save => {}
                RosterAction::Send { to: OPERATOR, message } => answer = Some(message),
                RosterAction::Send { to, message } => self.send(to, message, out),
                RosterAction::Say(note) => self.say(&note),
                // Only a member that coordinates has a rival that it obeys.
                RosterAction::StepDown { .. } => {}
            }
        }
        answer
    }

    fn save(&mut self) -> bool {
        let Some(roster) = self.authority.roster() else { return true };
        let saved = self.saving.save(&roster.save());
        if let Err(event) = &saved {
            event.iter().for_each(|event| (self.tell)(event));
        }
        saved.is_ok()
    }

    fn send(&mut self, to: Id, message: Message, out: &mut Outbox) {
        if let Message::Propose { epoch, .. } = &message {
            self.epochs.insert(epoch.number);
        }
        if let Some(client) = self.clients.get(&to) {
            out.send(*client, &Reply::Member(message).to_bytes());
        }
    }

    fn say(&mut self, note: &Note) {
        let epoch = self.authority.roster().and_then(|roster| roster.epoch());
        (self.tell)(&Event::of(note, epoch));
        if let Note::Started { .. } = note {
            self.forget_epochs();
            self.forget_processes();
        }
    }

    /// Removes the keys of old epochs from the store.
    fn forget_epochs(&mut self) {
        while self.epochs.len() > EPOCHS_KEPT {
            let Some(oldest) = self.epochs.pop_first() else { return };
            self.store.remove_under(&super::role::Role::Worker.part(oldest));
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
                let context = format!("wanted to join as {id}, expected one id, which is not zero");
                return Err(link::Error::new(link::Kind::Corrupt, context));
            }
            Request::Join { id, facts } => self.join(client, (id, facts), now, out),
            Request::Status => {
                self.watchers.insert(client);
                let json = status::describe(&self.authority, &self.known, self.end, now);
                out.send(client, &Reply::Status(json).to_bytes());
            }
            Request::Resize(target) => {
                let reply = match self.resize(target, now, out) {
                    Ok(()) => Reply::Resized(target),
                    Err(reason) => Reply::Refused(reason),
                };
                out.send(client, &reply.to_bytes());
            }
            Request::Views { .. } => {
                let reply = Reply::ViewsRefused("the coordinator has no servers".to_owned());
                out.send(client, &reply.to_bytes());
            }
            request => {
                let Some(id) = self.processes.get(&client).copied() else {
                    let context = "sent a message of a member before it joined";
                    return Err(link::Error::new(link::Kind::Corrupt, context));
                };
                self.answer_process(client, (id, request), now, out);
            }
        }
        Ok(())
    }

    fn join(&mut self, client: ClientId, (id, facts): (Id, Facts), now: Instant, out: &mut Outbox) {
        if let Some(reason) = self.objection(&facts) {
            let (here, there) = reason;
            (self.tell)(&Event::refused(id, &there));
            return out.send(client, &Reply::Refused(here).to_bytes());
        }
        self.facts.get_or_insert(facts);
        // A process that comes back may be here before the end of its last connection is.
        if let Some(before) = self.clients.insert(id, client).filter(|before| *before != client) {
            self.processes.remove(&before);
            out.close(before);
        }
        self.processes.insert(client, id);
        self.known.entry(id).or_default().heard = Some(now);
        let silence_ms = u32::try_from(self.silence.as_millis()).unwrap_or(u32::MAX);
        let coordinator = self.authority.id();
        out.send(client, &Reply::Welcome { coordinator, silence_ms }.to_bytes());
        if let Some(end) = self.end {
            out.send(client, &Reply::End(end).to_bytes());
        }
        self.has_begun = true;
        self.authority.arrived(self.roster_now(now));
    }

    /// The reason why a process cannot take part, as it is told to the process and to people here.
    fn objection(&self, facts: &Facts) -> Option<(String, String)> {
        if let Some(job) = &self.facts {
            let (name, found, expected) = facts.difference(job)?;
            let say = |who| {
                format!("ranks disagree on {name}: {who} has {found}, the job has {expected}")
            };
            return Some((say("this rank"), say("it")));
        }
        // The coordinator was restarted, and knows the hash alone.
        let expected = self.authority.roster()?.fingerprint()?;
        let found = facts.fingerprint();
        let say = |who| {
            format!(
                "ranks disagree on model, data or settings: {who} has fingerprint {found:016x}, the job has {expected:016x}"
            )
        };
        (found != expected).then(|| (say("this rank"), say("it")))
    }

    fn answer_process(
        &mut self,
        client: ClientId,
        (id, request): (Id, Request),
        now: Instant,
        out: &mut Outbox,
    ) {
        match request {
            Request::Member(Message::Report(report)) => {
                if let Some(known) = self.known.get_mut(&id) {
                    (known.standing, known.heard) = (Some(report.standing), Some(now));
                    known.done = report.state.map(|state| state.done);
                }
                self.decide(RosterEvent::Report { id, report }, now, out);
            }
            Request::Member(Message::Bye) => {
                self.decide(RosterEvent::Ended(id), now, out);
                // The process waits for this, so that its farewell is not lost with the connection.
                out.close(client);
            }
            Request::Figures(json) => {
                if let Some(known) = self.known.get_mut(&id) {
                    known.figures = serde_json::from_str(&json).ok();
                }
            }
            Request::Complete => self.finish(End::Complete, out),
            _ => {}
        }
    }

    /// Forgets what is known of processes that are neither here nor in the epoch.
    fn forget_processes(&mut self) {
        let epoch = self.authority.roster().and_then(|roster| roster.epoch());
        let is_member = |id: &Id| epoch.is_some_and(|epoch| epoch.contains(*id));
        self.known.retain(|id, _| self.clients.contains_key(id) || is_member(id));
    }
}

impl Service for CoordinatorService {
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
        if let Some(id) = self.processes.remove(&client) {
            self.clients.remove(&id);
            if let Some(known) = self.known.get_mut(&id) {
                known.heard = None;
            }
            self.decide(RosterEvent::Closed(id), now, out);
            self.forget_processes();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let is_active = self.has_begun && self.end.is_none();
        let roster = self.authority.deadline().filter(|_| is_active);
        let roster = roster.and_then(|deadline| self.base.checked_add(deadline));
        [self.store.deadline(), roster].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        if self.store.deadline().is_some_and(|deadline| now >= deadline) {
            self.store.tick(now, out);
        }
        if self.has_begun {
            self.decide(RosterEvent::Tick, now, out);
        }
    }

    fn message_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX.max(self.store.message_bytes_max())
    }
}
