//! Session of a client: its requests, its connections to servers, and the state of the job.
//!
//! The caller's thread drives the session while it waits for an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use thinwire_job as job;
use thinwire_job::elastic::JobAddress;
use thinwire_link as link;
use thinwire_link::endpoint::Endpoint;
use thinwire_member::Id;

use crate::client::caches::Caches;
use crate::client::connections::Connections;
use crate::client::inbox::{Event, Inbox};
use crate::client::pending_requests::{Done, Key, Outbound, PendingRequests};
use crate::client::split::{PartitionMap, Plan};
use crate::client::watch::Watch;
use crate::clocks::Pace;
use crate::configuration::{Definition, JobState, ViewRequest};
use crate::error::{Error, Kind};
use crate::reason::Request;
use crate::wire::FromClient;

/// Session of a client with the servers of a job.
#[derive(Debug)]
pub struct Session {
    /// Tables and the shards of their rows.
    pub partition_map: PartitionMap,
    /// Caches of the client's rows.
    pub caches: Caches,
    /// Buffer for answers that are not copied directly to their places.
    pub fetched: Vec<u8>,
    id: Id,
    timeout: Duration,
    state: JobState,
    /// Reason why the coordinator is unreachable, if it is.
    unavailable: Option<Error>,
    inbox: Arc<Inbox>,
    pending_requests: PendingRequests,
    connections: Endpoint<Connections>,
    /// Number and address of each server's connection.
    connected: BTreeMap<Id, (u64, String)>,
    /// Number of the last connection.
    number: u64,
    tickets: u64,
    pulls: u64,
    /// Progress of the workers: the largest step that any shard has reported for the slowest worker, and
    /// the last reported number of workers that push.
    pace: Pace,
    /// Tickets of pulls under way, each with a weak reference that no longer upgrades once the pull is
    /// dropped.
    pulling: Vec<(u64, Weak<()>)>,
    /// Time of the last answer, or of the beginning of the current wait.
    progress: Instant,
}

impl Session {
    /// Waits until the job has servers. Without a definition, the job's definition is used.
    pub fn open(
        job_address: &JobAddress,
        definition: Option<&Definition>,
        timeout: Duration,
    ) -> Result<Session, Error> {
        definition.map_or(Ok(()), |definition| definition.layout().map(drop))?;
        let define = |definition: &Definition| ViewRequest::Define(definition.clone()).to_bytes();
        let request = definition.map(define).unwrap_or_default();
        let inbox = Arc::new(Inbox::default());
        let watch = Watch::new(job_address, request, &inbox);
        let token = job::secret(&job_address.token, &job_address.coordinator)?;
        let connections =
            Endpoint::dialling(&token, Connections::new(job_address.id, watch, &inbox))?;
        connections.call(Connections::start);
        let state = wait_for_servers(&inbox, job_address, timeout)?;
        let job = state.definition.as_ref().expect("a job with servers has a definition");
        let layout = job.layout()?;
        let fingerprint = layout.fingerprint;
        connections.call(move |connections, _now, _out| connections.define(fingerprint));
        Ok(Session {
            partition_map: PartitionMap::new(job, &layout),
            caches: Caches::default(),
            fetched: Vec::new(),
            id: job_address.id,
            timeout,
            state,
            unavailable: None,
            connections,
            inbox,
            pending_requests: PendingRequests::default(),
            connected: BTreeMap::new(),
            number: 0,
            tickets: 0,
            pulls: 0,
            pace: Pace::default(),
            pulling: Vec::new(),
            progress: Instant::now(),
        })
    }

    /// Returns the longest wait for an answer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the progress of the workers, as far as answers have reported it.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Returns a new ticket, which groups requests.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Adds a request to a ticket; `bytes` is the size of the answer's values. [`Session::send`] sends it.
    pub fn add(&mut self, ticket: u64, key: Key, message: &FromClient, bytes: usize) {
        self.pending_requests.add(ticket, key, Arc::new(message.to_bytes()), bytes);
    }

    /// Adds the requests of a pull; answers must contain the client's first `after` pushes.
    pub fn add_pull(&mut self, plan: &mut Plan, after: u64) -> u64 {
        let (ticket, first) = (self.ticket(), self.pulls);
        self.pulls += plan.ranges.len() as u64;
        for (request, range) in (first..).zip(&mut plan.ranges) {
            let (shard, pull) = (range.shard, range.pull(self.id, request, after));
            let message = FromClient::Pull { shard, pull };
            self.add(ticket, (shard, Request::Pull(request)), &message, range.bytes);
        }
        plan.first = first;
        ticket
    }

    /// Waits for the answers of a pull and copies them to their places in `out`, which has the plan's length.
    pub fn finish_pull(&mut self, ticket: u64, plan: &Plan, out: &mut [u8]) -> Result<(), Error> {
        self.progress = Instant::now();
        loop {
            match self.next(ticket) {
                Ok(Some(Done { key: (_, Request::Pull(request)), values })) => {
                    plan.ranges[(request - plan.first) as usize].copy(&values, out);
                }
                // The ticket of a pull has no other requests.
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.pending_requests.forget(ticket);
                    return Err(error);
                }
            }
        }
        for (from, to) in &plan.repeats {
            out.copy_within(from.clone(), *to);
        }
        Ok(())
    }

    /// Waits until all requests of a ticket are answered.
    pub fn finish(&mut self, ticket: u64) -> Result<(), Error> {
        self.progress = Instant::now();
        while self.next(ticket)?.is_some() {}
        Ok(())
    }

    /// Handles received messages and sends due requests, without waiting.
    pub fn send(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        while self.take_until(now)? {}
        self.dispatch()
    }

    /// Registers a pull under way, whose owner holds `alive`, and drops the requests and answers of pulls
    /// whose owners are gone.
    pub fn keep(&mut self, ticket: u64, alive: &Arc<()>) {
        let gone = self.pulling.extract_if(.., |(_, alive)| alive.strong_count() == 0);
        gone.for_each(|(ticket, _)| self.pending_requests.forget(ticket));
        self.pulling.push((ticket, Arc::downgrade(alive)));
    }

    /// Drops the requests and answers of a ticket.
    pub fn forget(&mut self, ticket: u64) {
        self.pending_requests.forget(ticket);
    }

    /// Waits for the next answer of a ticket; `None` once all have been returned.
    fn next(&mut self, ticket: u64) -> Result<Option<Done>, Error> {
        loop {
            if let Some(done) = self.pending_requests.take(ticket) {
                return Ok(Some(done));
            }
            if self.pending_requests.open(ticket) == 0 {
                return Ok(None);
            }
            self.dispatch()?;
            let (now, end) = (Instant::now(), self.progress + self.timeout);
            if now >= end {
                return Err(self.stuck());
            }
            let deadline = self.pending_requests.deadline().map_or(end, |time| time.min(end));
            self.take_until(deadline)?;
        }
    }

    /// Handles the next message, waiting until `deadline`. Returns whether there was one.
    fn take_until(&mut self, deadline: Instant) -> Result<bool, Error> {
        let Some(news) = self.inbox.take(deadline) else { return Ok(false) };
        if self.inbox.has_room() {
            self.connections.call(|connections, _now, out| connections.release(out));
        }
        self.take_in(news).map(|()| true)
    }

    fn dispatch(&mut self) -> Result<(), Error> {
        for (server, request, message) in self.pending_requests.due(Instant::now(), &self.state)? {
            self.carry(server, request, message);
        }
        Ok(())
    }

    /// Sends a message to a server, connecting first if there is no connection.
    fn carry(&mut self, server: Id, request: Request, message: Outbound) {
        // A server without an address cannot be dialled: the connection breaks, and the request is repeated.
        let address = self.state.addresses.get(&server).map_or("", |address| address);
        let number = match self.connected.get(&server) {
            Some((number, known)) if known == address => *number,
            other => {
                let before = other.map(|(number, _)| *number);
                self.number += 1;
                let (number, address) = (self.number, address.to_owned());
                self.connected.insert(server, (number, address.clone()));
                self.connections.call(move |connections, now, out| {
                    before.into_iter().for_each(|before| connections.close(before, out));
                    connections.open(number, server, address, now, out);
                });
                number
            }
        };
        self.connections.call(move |connections, _now, out| {
            connections.send(number, request, message, out);
        });
    }

    fn take_in(&mut self, news: Event) -> Result<(), Error> {
        let now = Instant::now();
        match news {
            Event::State(state) => self.follow(*state),
            Event::Away(error) => self.unavailable = Some(error),
            // The definition was accepted before, so this is the coordinator of another job.
            Event::Refused(text) => self.unavailable = Some(Error::refused(&text)),
            Event::Reply(reply) => {
                if let Some(Pace { step, pushing }) = reply.pace() {
                    self.pace = Pace { step: self.pace.step.max(step), pushing };
                }
                if self.pending_requests.hear(reply, now)? {
                    self.progress = now;
                }
            }
            Event::Broken(server, number, error) => {
                // A newer connection may have replaced it.
                if self.connected.get(&server).is_some_and(|(known, _)| *known == number) {
                    self.connected.remove(&server);
                    self.pending_requests.broke(server, &error.to_string(), now);
                    return if is_final(&error) { Err(error) } else { Ok(()) };
                }
            }
        }
        Ok(())
    }

    fn follow(&mut self, state: JobState) {
        self.unavailable = None;
        if state.version <= self.state.version || !state.is_founded() {
            return;
        }
        self.state = state;
        let JobState { addresses, servers, .. } = &self.state;
        let is_there =
            |id: &Id, address: &String| servers.contains(id) && addresses.get(id) == Some(address);
        let gone = self.connected.extract_if(.., |id, (_, address)| !is_there(id, address));
        let gone: Vec<(Id, (u64, String))> = gone.collect();
        let now = Instant::now();
        for (id, (number, _)) in gone {
            self.pending_requests.broke(id, "the server has left", now);
            self.connections.call(move |connections, _now, out| connections.close(number, out));
        }
        self.pending_requests.follow(&self.state);
    }

    fn stuck(&self) -> Error {
        let (seconds, missing) =
            (self.timeout.as_secs_f64(), self.pending_requests.missing(&self.state));
        let unavailable = match &self.unavailable {
            Some(error) => format!("; the coordinator is away: {error}"),
            None => String::new(),
        };
        Error::new(
            Kind::Timeout,
            format!("no answer within {seconds:.0} s: {missing}{unavailable}"),
        )
    }
}

/// Returns whether connecting again would fail in the same way.
fn is_final(error: &Error) -> bool {
    use link::Kind::{TokenMismatch, VersionMismatch};
    let is_invalid = matches!(error.kind(), Kind::Refused | Kind::Job(job::Kind::Invalid));
    let link = match error.kind() {
        Kind::Job(job::Kind::Link(kind)) => Some(kind),
        _ => None,
    };
    is_invalid || matches!(link, Some(TokenMismatch | VersionMismatch))
}

fn wait_for_servers(
    inbox: &Inbox,
    job_address: &JobAddress,
    timeout: Duration,
) -> Result<JobState, Error> {
    let deadline = Instant::now() + timeout;
    let (mut last, mut unavailable) = (None, None);
    while let Some(news) = inbox.take(deadline) {
        match news {
            Event::State(state) if state.is_founded() => return Ok(*state),
            Event::State(state) => (last, unavailable) = (Some(state), None),
            Event::Refused(text) => return Err(Error::refused(&text)),
            Event::Away(error) if is_final(&error) => return Err(error),
            Event::Away(error) => unavailable = Some(error),
            Event::Reply(_) | Event::Broken(..) => {}
        }
    }
    let missing = match (last, unavailable) {
        (_, Some(error)) => error.to_string(),
        (None, None) => format!("the coordinator at {} does not answer", job_address.coordinator),
        (Some(state), None) => lacking(&state),
    };
    Err(Error::new(Kind::Timeout, format!("{missing} after {:.0} s", timeout.as_secs_f64())))
}

/// Describes what a job without views still needs.
fn lacking(state: &JobState) -> String {
    let Some(definition) = &state.definition else {
        return "the job has no tables yet".to_owned();
    };
    let reached = state.servers.iter().filter(|id| state.addresses.contains_key(id)).count();
    format!("{reached} of {} servers are there", definition.servers)
}
