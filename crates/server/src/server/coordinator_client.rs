//! Thread that talks to the coordinator about views and snapshots.
//!
//! The thread tells the coordinator this server's address and which learners are ready, and passes the
//! coordinator's decisions to the service. While the coordinator is away, the server continues in its last
//! views.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use thinwire_job::elastic::{JobAddress, Presence, ViewsConnection};
use thinwire_link::Backoff;
use thinwire_link::service::Server;

use super::snapshot_participant::SnapshotParticipant;
use crate::configuration::{Definition, JobState, Layout, NAME_BYTES_MAX, ViewRequest};
use crate::error::{Error, Kind};
use crate::reports::Reports;
use crate::service::{ServerService, Stats};
use crate::snapshot::Origin;

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait for the coordinator before looking at other work.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// Time after which a request without effect is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Largest number of queued lines for the user.
const EVENTS_MAX: usize = 16;

/// State that the thread shares with its server.
#[derive(Debug, Default)]
pub struct Shared {
    stats: Mutex<Stats>,
    refusal: Mutex<Option<String>>,
    exclusion: Mutex<Option<Error>>,
    news: Mutex<VecDeque<String>>,
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

/// Connection of a server with the coordinator, and what it needs.
pub struct CoordinatorClient {
    job_address: JobAddress,
    address: String,
    service: Arc<Server<ServerService>>,
    presence: Arc<Presence>,
    reports: Arc<Reports>,
    shared: Arc<Shared>,
    /// Snapshot from which the job begins, if this server has it.
    origin: Option<Origin>,
    participant: SnapshotParticipant,
    /// The layout, once the definition is known.
    layout: Option<Arc<Layout>>,
    /// Whether the shards have servers, and this server has loaded the rows with which its shards begin.
    has_begun: bool,
    /// Last state from the coordinator.
    state: JobState,
    /// Requests, with the time before which they are not repeated.
    requested: BTreeMap<Vec<u8>, Instant>,
    next_stats: Instant,
    /// Memory for the job's tables in bytes, if it is known.
    memory: Option<u64>,
    /// Why this server cannot load its rows, if it cannot.
    failure: Option<String>,
}

impl CoordinatorClient {
    /// Creates the connection state of a server that has not yet heard from the coordinator.
    pub fn new(
        (job_address, address): (JobAddress, String),
        (service, presence): (Arc<Server<ServerService>>, Arc<Presence>),
        (reports, shared): (Arc<Reports>, Arc<Shared>),
        (participant, origin, memory): (SnapshotParticipant, Option<Origin>, Option<u64>),
    ) -> CoordinatorClient {
        CoordinatorClient {
            job_address,
            address,
            service,
            presence,
            reports,
            shared,
            origin,
            participant,
            layout: None,
            has_begun: false,
            state: JobState::default(),
            requested: BTreeMap::new(),
            next_stats: Instant::now(),
            memory,
            failure: None,
        }
    }

    /// Talks to the coordinator until the server ends.
    pub fn run(mut self) {
        let mut backoff = Backoff::default();
        while !self.is_over() {
            let (to, token) =
                (self.job_address.coordinator.clone(), self.job_address.token.clone());
            if let Ok(connection) =
                ViewsConnection::connect(&to, &token, self.job_address.id, CONNECT)
            {
                backoff.reset();
                // An error ends only this connection; the loop opens the next one.
                let _ = self.talk(connection);
            }
            if !self.is_over() {
                thread::park_timeout(backoff.pause());
            }
        }
        if self.reports.failure().is_some() {
            // The others continue without this server, as if it had died.
            self.presence.leave();
        }
    }

    fn is_over(&self) -> bool {
        self.reports.is_over() || self.failure.is_some()
    }

    fn talk(&mut self, mut connection: ViewsConnection) -> Result<(), Error> {
        self.reports.on_report(connection.waker());
        self.requested.clear();
        connection.send(&[])?;
        while !self.is_over() {
            match connection.receive(WAIT_MAX)? {
                Some(Ok(state)) => {
                    self.shared.refused(None);
                    self.decided(JobState::parse(&state)?)?;
                }
                Some(Err(text)) => self.shared.refused(Some(text)),
                None => {}
            }
            self.request(&mut connection)?;
            self.tell_stats();
        }
        self.explain(&mut connection)
    }

    /// Tells the others why this server leaves, if it has failed, and waits until they can know.
    fn explain(&mut self, connection: &mut ViewsConnection) -> Result<(), Error> {
        let Some(reason) = self.failure.clone().or_else(|| self.reports.failure()) else {
            return Ok(());
        };
        let reason = reason[..reason.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
        connection.send(&ViewRequest::Failed { reason }.to_bytes())?;
        let end = Instant::now() + AGAIN;
        while Instant::now() < end {
            let Some(Ok(state)) = connection.receive(WAIT_MAX)? else { continue };
            if JobState::parse(&state)?.failures.contains_key(&self.job_address.id) {
                break;
            }
        }
        Ok(())
    }

    /// Adopts a new state of the job.
    fn decided(&mut self, state: JobState) -> Result<(), Error> {
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
            let presence = Arc::clone(&self.presence);
            let lost = Arc::new(move |id| presence.lost(id));
            self.layout = Some(Arc::clone(&layout));
            self.service.call(move |service, now, out| service.define(&layout, lost, now, out));
        }
        if !self.has_begun {
            if let Err(error) = self.begin(&definition) {
                self.failure = Some(error.to_string());
                self.shared.refused(self.failure.clone());
                self.shared.exclude(error);
                return Ok(());
            }
            self.has_begun = true;
        }
        let state = self.state.clone();
        self.service.call(move |service, now, out| service.renew(&state, now, out));
        Ok(())
    }

    /// Loads the rows with which new shards begin, if the job begins with files.
    fn begin(&self, definition: &Definition) -> Result<(), Error> {
        let other = |message: String| Error::new(Kind::Snapshot, message);
        let name = match (&definition.restore, &self.origin) {
            (None, None) => return Ok(()),
            (None, Some(origin)) => {
                let name = origin.name();
                let message =
                    format!("a server that goes on from {name}, and a job that begins anew");
                return Err(other(message).with_hint("give --restore to its ranks, too"));
            }
            (Some(name), _) => name,
        };
        let views = (0..).zip(&self.state.views);
        let mine = views.filter(|(_, view)| view.replicas.contains(&self.job_address.id));
        let mine: Vec<u32> = mine.map(|(shard, _)| shard).collect();
        let Some(layout) = self.layout.as_ref().filter(|_| !mine.is_empty()) else {
            return Ok(());
        };
        let Some(origin) = &self.origin else {
            let message = format!("the job goes on from {name}, which this server does not have");
            return Err(other(message).with_hint("give it: --restore PATH"));
        };
        if origin.name() != *name {
            let found = origin.name();
            return Err(other(format!("a server with {found}, the job goes on from {name}")));
        }
        origin.check(definition)?;
        let tables = origin.tables((definition, layout), &mine)?;
        self.service.call(move |service, _now, _out| service.restore(tables));
        Ok(())
    }

    /// Sends requests for everything that the coordinator lacks.
    fn request(&mut self, connection: &mut ViewsConnection) -> Result<(), Error> {
        let mut requests = Vec::new();
        let origin = self.origin.as_ref().map(Origin::name).filter(|_| !self.state.is_founded());
        if origin.is_some() && self.state.origins.get(&self.job_address.id) != origin.as_ref() {
            requests.extend(origin.map(ViewRequest::Origin));
        }
        let memory = self.memory.filter(|_| !self.state.is_founded());
        if memory.is_some() && self.state.memories.get(&self.job_address.id) != memory.as_ref() {
            requests.extend(memory.map(|bytes| ViewRequest::Memory { bytes }));
        }
        if self.state.addresses.get(&self.job_address.id) != Some(&self.address) {
            requests.push(ViewRequest::Address(self.address.clone()));
        }
        for ((shard, learner), view) in self.reports.take() {
            requests.push(ViewRequest::Ready { shard, view, learner });
        }
        let views = self.reports.recovered();
        if !views.is_empty() {
            requests.push(ViewRequest::Kept { views });
        }
        let now = Instant::now();
        if let Some(layout) = &self.layout {
            requests.extend(self.participant.request(&self.state, layout, now));
            self.participant
                .notice(&self.state)
                .into_iter()
                .for_each(|line| self.shared.tell(line));
        }
        self.requested.retain(|_, until| *until > now);
        for request in requests {
            if let Entry::Vacant(new) = self.requested.entry(request.to_bytes()) {
                connection.send(new.key())?;
                new.insert(now + AGAIN);
            }
        }
        Ok(())
    }

    fn tell_stats(&mut self) {
        if Instant::now() < self.next_stats {
            return;
        }
        self.next_stats = Instant::now() + AGAIN;
        let shared = Arc::clone(&self.shared);
        self.service.call(move |service, _now, _out| {
            *shared.stats.lock().expect("no holder panics") = service.stats();
        });
        // These may be the stats of the previous call: the service updates them in its own thread.
        if let Ok(Value::Object(stats)) = serde_json::to_value(self.shared.stats()) {
            self.presence.tell(stats);
        }
    }
}
