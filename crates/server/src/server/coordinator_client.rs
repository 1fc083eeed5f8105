//! Part of a server's node that talks to the coordinator about views and snapshots.
//!
//! It reports this server's address and the learners that are ready, and passes the coordinator's decisions
//! to the service. While the coordinator is not reachable, the server continues in its last views.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use thinwire_job::elastic::{JobAddress, Presence, Subscription};
use thinwire_link as link;
use thinwire_link::endpoint::{ClientId, Outbox};

use super::snapshot_participant::SnapshotParticipant;
use crate::configuration::{Definition, JobState, Layout, NAME_BYTES_MAX, ViewRequest};
use crate::error::{Error, Kind};
use crate::reports::Reports;
use crate::service::{ServerService, Stats};
use crate::snapshot::Origin;
use crate::table::Tables;

/// Longest time between two checks of what the coordinator lacks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time after which a request that has had no effect is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Largest number of queued lines for the user.
const EVENTS_MAX: usize = 16;

/// State that the node shares with its server.
#[derive(Debug, Default)]
pub struct Shared {
    stats: Mutex<Stats>,
    refusal: Mutex<Option<String>>,
    exclusion: Mutex<Option<Error>>,
    news: Mutex<VecDeque<String>>,
    explanation: Mutex<Explanation>,
    explained: Condvar,
}

/// Whether the others know why this server leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Explanation {
    /// The server does not leave.
    #[default]
    None,
    UnderWay,
    /// The others know the reason, or the time for telling them is over.
    Given,
}

impl Shared {
    /// Returns the latest stats.
    pub fn stats(&self) -> Stats {
        self.stats.lock().expect("no holder panics").clone()
    }

    /// Returns the latest refusal by the coordinator.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().expect("no holder panics").clone()
    }

    /// Returns, once, the error that excludes the server from the job.
    pub fn exclusion(&self) -> Option<Error> {
        self.exclusion.lock().expect("no holder panics").take()
    }

    /// Takes the next line for the user.
    pub fn notice(&self) -> Option<String> {
        self.news.lock().expect("no holder panics").pop_front()
    }

    /// If this server is leaving, waits until the others can know the reason.
    pub fn wait_for_explanation(&self, reports: &Reports) {
        let explanation = self.explanation.lock().expect("no holder panics");
        let waits = |explanation: &mut Explanation| match explanation {
            Explanation::None => reports.failure().is_some(),
            Explanation::UnderWay => true,
            Explanation::Given => false,
        };
        drop(self.explained.wait_timeout_while(explanation, 2 * AGAIN, waits));
    }

    fn explains(&self, explanation: Explanation) {
        *self.explanation.lock().expect("no holder panics") = explanation;
        self.explained.notify_all();
    }

    fn tell(&self, line: String) {
        let mut news = self.news.lock().expect("no holder panics");
        news.push_back(line);
        // Nobody reads the lines if a program hosts the server.
        if news.len() > EVENTS_MAX {
            news.pop_front();
        }
    }

    fn exclude(&self, error: Error) {
        *self.exclusion.lock().expect("no holder panics") = Some(error);
    }

    fn refused(&self, text: Option<String>) {
        *self.refusal.lock().expect("no holder panics") = text;
    }
}

/// Parts that a server needs to take part in a job.
pub struct Parts {
    pub job_address: JobAddress,
    /// Address at which other processes reach the server, as host:port.
    pub address: String,
    pub presence: Arc<Presence>,
    pub reports: Arc<Reports>,
    pub shared: Arc<Shared>,
    pub participant: SnapshotParticipant,
    /// Files with which the job begins, if this server has them.
    pub origin: Option<Arc<Origin>>,
    /// Memory for the job's tables in bytes, if it is known.
    pub memory: Option<u64>,
}

/// Connection of a server with the coordinator, and the last state of the job that the server has
/// received.
pub struct CoordinatorClient {
    parts: Parts,
    subscription: Subscription,
    /// Last state from the coordinator.
    state: JobState,
    /// The layout, once the definition is known.
    layout: Option<Arc<Layout>>,
    rows: Rows,
    /// Requests that were sent, each with the time before which it is not repeated.
    requested: BTreeMap<Vec<u8>, Instant>,
    /// Time of the last check.
    looked: Instant,
    next_stats: Instant,
    leaving: Option<Leaving>,
}

/// Rows with which the shards of this server begin.
enum Rows {
    /// The shards have no servers yet.
    Unknown,
    /// A thread loads them.
    Loading(Receiver<Result<BTreeMap<u32, Tables>, Error>>),
    /// The service has them.
    Ready,
}

/// A server that has failed, and is telling the others why.
struct Leaving {
    reason: String,
    /// Time at which the server leaves even if the others do not know the reason.
    until: Instant,
    is_over: bool,
}

impl CoordinatorClient {
    /// Creates the state of a server that has not yet heard from the coordinator.
    pub fn new(parts: Parts, now: Instant) -> CoordinatorClient {
        CoordinatorClient {
            subscription: Subscription::new(&parts.job_address),
            parts,
            state: JobState::default(),
            layout: None,
            rows: Rows::Unknown,
            requested: BTreeMap::new(),
            looked: now,
            next_stats: now,
            leaving: None,
        }
    }

    /// Dials the coordinator.
    pub fn start(&mut self, now: Instant, out: &mut Outbox) {
        self.subscription.dial(now, out);
    }

    /// Returns whether a connection is the one to the coordinator.
    pub fn has(&self, client: ClientId) -> bool {
        self.subscription.has(client)
    }

    /// Subscribes on a new connection, and clears the list of requests that were sent: a new coordinator
    /// would not have them.
    pub fn opened(&mut self, out: &mut Outbox) {
        self.requested.clear();
        self.subscription.opened(&[], out);
        self.explain(out);
    }

    /// Adopts the coordinator's decisions.
    ///
    /// # Errors
    /// If its message is malformed.
    pub fn received(
        &mut self,
        message: &[u8],
        service: &mut ServerService,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match self.subscription.received(message)? {
            Ok(state) => {
                self.parts.shared.refused(None);
                self.decided(JobState::parse(&state)?, service, now, out)?;
            }
            Err(text) => self.parts.shared.refused(Some(text)),
        }
        self.look(service, now, out);
        Ok(())
    }

    /// Dials again. The shards continue in their last views.
    pub fn hung_up(&mut self, why: &link::Error, now: Instant, out: &mut Outbox) {
        self.subscription.hung_up(why, now, out);
    }

    /// Returns the time of the next check.
    pub fn deadline(&self) -> Option<Instant> {
        let is_over = self.leaving.as_ref().is_some_and(|leaving| leaving.is_over);
        let is_due = self.parts.reports.is_due();
        let next = if is_due { self.looked } else { self.looked + LOOK_EVERY };
        (!is_over).then_some(next)
    }

    /// Handles the reports of the shards and of the snapshot writer, and sends the coordinator
    /// everything that it lacks.
    pub fn look(&mut self, service: &mut ServerService, now: Instant, out: &mut Outbox) {
        self.looked = now;
        // Before the reports are read: whatever is reported from now on asks for another look.
        self.parts.reports.looked();
        if let Some(reason) = self.parts.reports.failure() {
            self.leave(reason, now, out);
        }
        if self.leaving.is_some() {
            return self.end_if_known(now, out);
        }
        if let Err(error) = self.take_rows(service, now, out) {
            return self.exclude(error, now, out);
        }
        // Reports are taken once: those of the time without the coordinator wait for it.
        if self.subscription.is_open() {
            self.request(now, out);
        }
        self.tell_stats(service, now);
    }

    /// Adopts a new state of the job.
    fn decided(
        &mut self,
        state: JobState,
        service: &mut ServerService,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        // A coordinator that has been replaced may still send an old state.
        if state.version < self.state.version {
            return Ok(());
        }
        self.state = state;
        // Before, another definition may still take its place.
        let definition = self.state.definition.clone().filter(|_| self.state.is_founded());
        let Some(definition) = definition else { return Ok(()) };
        if self.layout.is_none() {
            let layout = Arc::new(definition.layout()?);
            let presence = Arc::clone(&self.parts.presence);
            let lost = Arc::new(move |id| presence.lost(id));
            self.layout = Some(Arc::clone(&layout));
            service.define(&layout, lost, now, out);
        }
        if matches!(self.rows, Rows::Unknown) && self.leaving.is_none() {
            match self.load(&definition) {
                Ok(rows) => self.rows = rows,
                Err(error) => self.exclude(error, now, out),
            }
        }
        if matches!(self.rows, Rows::Ready) && self.leaving.is_none() {
            service.renew(&self.state, now, out);
        }
        Ok(())
    }

    /// Loads the rows with which new shards begin, if the job begins with files. A separate thread reads
    /// the files, because the present thread must answer the peers meanwhile.
    fn load(&self, definition: &Definition) -> Result<Rows, Error> {
        let other = |message: String| Error::new(Kind::Snapshot, message);
        let name = match (&definition.restore, &self.parts.origin) {
            (None, None) => return Ok(Rows::Ready),
            (None, Some(origin)) => {
                let name = origin.name();
                let message = format!("this server continues from {name}, but the job does not");
                return Err(other(message).with_hint("give the same --restore to the ranks"));
            }
            (Some(name), _) => name,
        };
        let (views, own) = ((0..).zip(&self.state.views), self.parts.job_address.id);
        let mine = views.filter(|(_, view)| view.replicas.contains(&own));
        let mine: Vec<u32> = mine.map(|(shard, _)| shard).collect();
        // A server that comes later has no shards yet, and gets the rows of those it is given from their primaries.
        let Some(layout) = self.layout.clone().filter(|_| !mine.is_empty()) else {
            return Ok(Rows::Ready);
        };
        let Some(origin) = self.parts.origin.clone() else {
            let message = format!("the job continues from {name}, which this server does not have");
            return Err(other(message).with_hint("give --restore PATH"));
        };
        if origin.name() != *name {
            let found = origin.name();
            return Err(other(format!(
                "this server continues from {found}, but the job from {name}"
            )));
        }
        origin.check(definition)?;
        let (definition, reports) = (definition.clone(), Arc::clone(&self.parts.reports));
        let (sender, loaded) = channel();
        let load = move || {
            // The server may have ended.
            let _ = sender.send(origin.tables(&definition, &layout, &mine));
            reports.wake();
        };
        let thread = thread::Builder::new().name("thinwire restore".to_owned());
        thread.spawn(load).map_err(|error| other(format!("starting a thread: {error}")))?;
        Ok(Rows::Loading(loaded))
    }

    /// Passes the loaded rows to the service, and then the views that waited for them.
    fn take_rows(
        &mut self,
        service: &mut ServerService,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let Rows::Loading(loaded) = &self.rows else { return Ok(()) };
        let Ok(tables) = loaded.try_recv() else { return Ok(()) };
        service.restore(tables?);
        self.rows = Rows::Ready;
        service.renew(&self.state, now, out);
        Ok(())
    }

    /// Leaves the job, because this server cannot load its rows.
    fn exclude(&mut self, error: Error, now: Instant, out: &mut Outbox) {
        let text = error.to_string();
        self.parts.shared.refused(Some(text.clone()));
        self.leave(text, now, out);
        self.parts.shared.exclude(error);
    }

    /// Begins to leave, unless this server is leaving already.
    fn leave(&mut self, reason: String, now: Instant, out: &mut Outbox) {
        if self.leaving.is_none() {
            let reason = reason[..reason.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
            self.leaving = Some(Leaving { reason, until: now + AGAIN, is_over: false });
            self.parts.shared.explains(Explanation::UnderWay);
            self.explain(out);
        }
    }

    /// If this server is leaving, tells the others the reason.
    fn explain(&mut self, out: &mut Outbox) {
        if let Some(Leaving { reason, .. }) = &self.leaving {
            let request = ViewRequest::Failed { reason: reason.clone() };
            self.subscription.send(&request.to_bytes(), out);
        }
    }

    /// Ends the connection once the others can know the reason why this server leaves, or the time for
    /// telling them is over.
    fn end_if_known(&mut self, now: Instant, out: &mut Outbox) {
        let is_known = self.state.failures.contains_key(&self.parts.job_address.id);
        let Some(leaving) = &mut self.leaving else { return };
        if leaving.is_over || !(is_known || now >= leaving.until) {
            return;
        }
        leaving.is_over = true;
        self.subscription.close(out);
        if self.parts.reports.failure().is_some() {
            // The others continue without this server, as if it had died.
            self.parts.presence.begin_leave();
        }
        self.parts.shared.explains(Explanation::Given);
    }

    /// Sends requests for everything that the coordinator lacks.
    fn request(&mut self, now: Instant, out: &mut Outbox) {
        let Parts { job_address, address, reports, shared, participant, origin, memory, .. } =
            &mut self.parts;
        let mut requests = Vec::new();
        let origin = origin.as_ref().map(|origin| origin.name());
        let origin = origin.filter(|_| !self.state.is_founded());
        if origin.is_some() && self.state.origins.get(&job_address.id) != origin.as_ref() {
            requests.extend(origin.map(ViewRequest::Origin));
        }
        let memory = memory.filter(|_| !self.state.is_founded());
        if memory.is_some() && self.state.memories.get(&job_address.id) != memory.as_ref() {
            requests.extend(memory.map(|bytes| ViewRequest::Memory { bytes }));
        }
        if self.state.addresses.get(&job_address.id) != Some(address) {
            requests.push(ViewRequest::Address(address.clone()));
        }
        for ((shard, learner), view) in reports.take() {
            requests.push(ViewRequest::Ready { shard, view, learner });
        }
        let views = reports.recovered();
        if !views.is_empty() {
            requests.push(ViewRequest::Kept { views });
        }
        if let Some(layout) = &self.layout {
            requests.extend(participant.request(&self.state, layout, now));
            participant.notice(&self.state).into_iter().for_each(|line| shared.tell(line));
        }
        self.requested.retain(|_, until| *until > now);
        for request in requests {
            if let Entry::Vacant(new) = self.requested.entry(request.to_bytes()) {
                self.subscription.send(new.key(), out);
                new.insert(now + AGAIN);
            }
        }
    }

    fn tell_stats(&mut self, service: &ServerService, now: Instant) {
        if now < self.next_stats {
            return;
        }
        self.next_stats = now + AGAIN;
        let stats = service.stats();
        if let Ok(Value::Object(shown)) = serde_json::to_value(&stats) {
            self.parts.presence.tell(shown);
        }
        *self.parts.shared.stats.lock().expect("no holder panics") = stats;
    }
}
