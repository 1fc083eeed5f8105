//! Open requests of a client, each with the server to which it was sent and the time at which it is
//! repeated.
//!
//! This is a state machine without sockets or clock. A request keeps its number when it is repeated, and goes
//! to the primary in the newest state. Laws: a request is completed once. The answers that a server has
//! yet to send take at most [`WINDOW_BYTES`], unless there is only one. A request that is refused or
//! lost is repeated after a growing pause, or at once when the state changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_link::Backoff;
use thinwire_member::Id;

use crate::configuration::JobState;
use crate::error::{Error, Kind};
use crate::reason::Request;
use crate::wire::FromServer;

/// Largest size in bytes of the answers that one server has yet to send.
const WINDOW_BYTES: usize = 4 << 20;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Serialised message, kept until it is answered.
pub type Outbound = Arc<Vec<u8>>;

/// Shard and request.
pub type Key = (u32, Request);

/// Answer to a request.
#[derive(Debug, PartialEq)]
pub struct Done {
    /// Shard and request.
    pub key: Key,
    /// Values of a pull as received; empty for a push.
    pub values: Vec<u8>,
}

/// Open requests and their answers.
#[derive(Debug, Default)]
pub struct PendingRequests {
    asks: BTreeMap<Key, Ask>,
    /// Bytes of the answers that each server has yet to send.
    owed: BTreeMap<Id, usize>,
    /// Answers not yet taken, by ticket.
    done: BTreeMap<u64, VecDeque<Done>>,
    /// Number of open requests, by ticket.
    open: BTreeMap<u64, usize>,
}

#[derive(Debug)]
struct Ask {
    ticket: u64,
    message: Outbound,
    answer_bytes: usize,
    stage: Stage,
    backoff: Backoff,
    /// Reason why the last attempt failed, or a text with the worker for which the request waits.
    vain: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// To be sent after a pause that ends at this time; or, without a time, once its primary is known
    /// and owes few enough answers.
    Due(Option<Instant>),
    Sent(Id),
}

impl PendingRequests {
    /// Adds a request to a ticket. `answer_bytes` is the size of the answer's values.
    pub fn add(&mut self, ticket: u64, key: Key, message: Outbound, answer_bytes: usize) {
        let (stage, backoff) = (Stage::Due(None), Backoff::new(PAUSE_MIN, PAUSE_MAX));
        let ask = Ask { ticket, message, answer_bytes, stage, backoff, vain: None };
        self.asks.insert(key, ask);
        *self.open.entry(ticket).or_default() += 1;
    }

    /// Returns the number of open requests of a ticket.
    pub fn open(&self, ticket: u64) -> usize {
        self.open.get(&ticket).copied().unwrap_or(0)
    }

    /// Takes the next answer of a ticket, if there is one.
    pub fn take(&mut self, ticket: u64) -> Option<Done> {
        let queue = self.done.get_mut(&ticket)?;
        let done = queue.pop_front();
        if queue.is_empty() {
            self.done.remove(&ticket);
        }
        done
    }

    /// Drops all requests and answers of a ticket.
    pub fn forget(&mut self, ticket: u64) {
        let of_ticket = |(key, ask): (&Key, &Ask)| (ask.ticket == ticket).then_some(*key);
        let keys: Vec<Key> = self.asks.iter().filter_map(of_ticket).collect();
        for key in keys {
            self.unsend(key);
            self.asks.remove(&key);
        }
        self.open.remove(&ticket);
        self.done.remove(&ticket);
    }

    /// Returns the requests to send now, each with its server.
    ///
    /// # Errors
    /// If a shard is lost.
    pub fn due(
        &mut self,
        now: Instant,
        state: &JobState,
    ) -> Result<Vec<(Id, Request, Outbound)>, Error> {
        let mut messages = Vec::new();
        for ((shard, request), ask) in &mut self.asks {
            if state.lost.binary_search(shard).is_ok() {
                return Err(lost(*shard, state));
            }
            let Stage::Due(time) = ask.stage else { continue };
            if time.is_some_and(|time| time > now) {
                continue;
            }
            ask.stage = Stage::Due(None);
            let Some(server) = primary(*shard, state) else { continue };
            let owed = self.owed.entry(server).or_default();
            let has_room = *owed == 0 || *owed + ask.answer_bytes <= WINDOW_BYTES;
            if has_room {
                *owed += ask.answer_bytes;
                ask.stage = Stage::Sent(server);
                messages.push((server, *request, Arc::clone(&ask.message)));
            }
        }
        Ok(messages)
    }

    /// Returns the time at which to call [`PendingRequests::due`] next if no message arrives earlier: the
    /// earliest end of a pause that [`PendingRequests::due`] has not taken into account yet.
    pub fn deadline(&self) -> Option<Instant> {
        let time = |ask: &Ask| match ask.stage {
            Stage::Due(time) => time,
            Stage::Sent(_) => None,
        };
        self.asks.values().filter_map(time).min()
    }

    /// Handles a message of a server. Returns whether a request was answered.
    ///
    /// # Errors
    /// If a request can never be answered, or the server refuses this client.
    pub fn hear(&mut self, reply: FromServer, now: Instant) -> Result<bool, Error> {
        match reply {
            FromServer::Welcome { .. } => Ok(false),
            FromServer::Acknowledge { shard, number, .. } => {
                Ok(self.end((shard, Request::Push(number)), Vec::new()))
            }
            FromServer::Answer { shard, request, values, .. } => {
                let key = (shard, Request::Pull(request));
                let found = values.len();
                match self.asks.get(&key) {
                    Some(ask) if ask.answer_bytes != found => {
                        let expected = ask.answer_bytes;
                        let context = format!("answer of {found} bytes, expected {expected}");
                        Err(Error::corrupt(context))
                    }
                    _ => Ok(self.end(key, values)),
                }
            }
            FromServer::Delayed { shard, request, slowest } => {
                let ask = self.asks.get_mut(&(shard, request));
                ask.into_iter().for_each(|ask| ask.vain = Some(slowest.to_string()));
                Ok(false)
            }
            FromServer::Refused { shard, request, reason } => {
                self.again((shard, request), &reason.to_string(), now);
                Ok(false)
            }
            FromServer::SchemaError { shard, request, text } => {
                let Some(ask) = self.asks.get(&(shard, request)) else { return Ok(false) };
                self.forget(ask.ticket);
                Err(Error::invalid(text))
            }
            FromServer::Stranger { text } => Err(Error::new(Kind::Refused, text)),
        }
    }

    /// Handles the end of the connection to a server: its requests are repeated.
    pub fn broke(&mut self, server: Id, why: &str, now: Instant) {
        let at = |(key, ask): (&Key, &Ask)| match ask.stage {
            Stage::Sent(to) if to == server => Some(*key),
            _ => None,
        };
        let keys: Vec<Key> = self.asks.iter().filter_map(at).collect();
        keys.into_iter().for_each(|key| self.again(key, why, now));
    }

    /// Adopts a new state: requests sent to a server that is no longer the primary are sent again.
    pub fn follow(&mut self, state: &JobState) {
        let moved = |(key, ask): (&Key, &Ask)| match ask.stage {
            Stage::Sent(server) if primary(key.0, state) == Some(server) => None,
            // Refused requests are retried at once: the state may be what they needed.
            _ => Some(*key),
        };
        let keys: Vec<Key> = self.asks.iter().filter_map(moved).collect();
        for key in keys {
            self.unsend(key);
            self.asks.entry(key).and_modify(|ask| ask.stage = Stage::Due(None));
        }
    }

    /// Describes the open requests in one line.
    pub fn missing(&self, state: &JobState) -> String {
        let Some(((shard, request), ask)) = self.asks.iter().next() else { return String::new() };
        let (noun, count) = (noun(*request), self.asks.len());
        let server = match state.views.get(*shard as usize).and_then(|view| view.primary()) {
            None => "no server".to_owned(),
            Some(id) => match state.addresses.get(&id) {
                Some(address) => format!("server {id} at {address}"),
                None => format!("server {id}, whose address is not known"),
            },
        };
        let is_silent = state.silent.binary_search(shard).is_ok();
        let why = ask.vain.as_deref().filter(|_| !is_silent);
        let why = why.unwrap_or(if is_silent {
            "all servers of the shard are silent"
        } else {
            "no answer"
        });
        format!("{count} requests wait, the first is a {noun} of shard {shard} for {server}: {why}")
    }

    /// Schedules a request again after a pause.
    fn again(&mut self, key: Key, why: &str, now: Instant) {
        self.unsend(key);
        let Some(ask) = self.asks.get_mut(&key) else { return };
        ask.stage = Stage::Due(Some(now + ask.backoff.pause()));
        ask.vain = Some(why.to_owned());
    }

    fn unsend(&mut self, key: Key) {
        let Some(ask) = self.asks.get(&key) else { return };
        if let Stage::Sent(server) = ask.stage {
            let owed = self.owed.entry(server).or_default();
            *owed = owed.saturating_sub(ask.answer_bytes);
        }
    }

    fn end(&mut self, key: Key, values: Vec<u8>) -> bool {
        self.unsend(key);
        let Some(ask) = self.asks.remove(&key) else { return false };
        self.done.entry(ask.ticket).or_default().push_back(Done { key, values });
        // It is there: `add` has counted the request.
        let open = self.open.entry(ask.ticket).or_insert(1);
        *open -= 1;
        if *open == 0 {
            self.open.remove(&ask.ticket);
        }
        true
    }
}

/// Returns the primary of a shard, if its address is known.
fn primary(shard: u32, state: &JobState) -> Option<Id> {
    let primary = state.views.get(shard as usize)?.primary()?;
    state.addresses.contains_key(&primary).then_some(primary)
}

fn lost(shard: u32, state: &JobState) -> Error {
    let replicas = state.views.get(shard as usize).map_or(&[][..], |view| &view.replicas);
    let name = |id: &Id| match state.failures.get(id) {
        Some(reason) => format!("{id} ({reason})"),
        None => id.to_string(),
    };
    let names: Vec<_> = replicas.iter().map(name).collect();
    let message = format!("shard {shard} is lost: its last servers were {}", names.join(", "));
    Error::new(Kind::Lost, message)
        .with_hint("continue from a snapshot (--restore), with backups of each shard (--replicas)")
}

fn noun(request: Request) -> &'static str {
    match request {
        Request::Push(_) => "push",
        Request::Pull(_) => "pull",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocks::Pace;
    use crate::reason::{Reason, Slowest};
    use crate::view::View;

    fn state(primaries: &[u64]) -> JobState {
        let views = primaries.iter().map(|id| View::found(1, &[Id(*id)])).collect();
        let addresses = primaries.iter().map(|id| (Id(*id), format!("host:{id}"))).collect();
        JobState { views, addresses, ..JobState::default() }
    }

    fn pending_requests(asks: &[(Key, usize)]) -> PendingRequests {
        let mut pending_requests = PendingRequests::default();
        for (key, bytes) in asks {
            pending_requests.add(7, *key, Arc::default(), *bytes);
        }
        pending_requests
    }

    fn servers(pending_requests: &mut PendingRequests, now: Instant, state: &JobState) -> Vec<u64> {
        pending_requests.due(now, state).unwrap().into_iter().map(|(server, ..)| server.0).collect()
    }

    const PUSH: Key = (0, Request::Push(3));

    #[test]
    fn a_refused_request_pauses_or_follows_its_shard() {
        let (now, at_first, later) = (Instant::now(), state(&[1]), state(&[2]));
        let mut pending_requests = pending_requests(&[(PUSH, 0)]);
        assert_eq!(servers(&mut pending_requests, now, &at_first), [1]);
        let reason = Reason::Elsewhere { primary: None };
        let refused = FromServer::Refused { shard: 0, request: PUSH.1, reason };
        assert!(!pending_requests.hear(refused, now).unwrap());
        assert!(servers(&mut pending_requests, now, &at_first).is_empty());
        assert_eq!(pending_requests.deadline(), Some(now + PAUSE_MIN));
        assert_eq!(servers(&mut pending_requests, now + PAUSE_MIN, &at_first), [1]);
        pending_requests.follow(&later);
        assert_eq!(servers(&mut pending_requests, now, &later), [2], "its primary is another");
        pending_requests.follow(&later);
        assert!(servers(&mut pending_requests, now, &later).is_empty(), "it is the same");
        assert_eq!(
            pending_requests.missing(&later),
            "1 requests wait, the first is a push of shard 0 for server 0000000000000002 at host:2: \
             the primary is not known here"
        );
    }

    #[test]
    fn a_request_is_done_once() {
        let (now, state) = (Instant::now(), state(&[1]));
        let mut pending_requests = pending_requests(&[(PUSH, 0)]);
        servers(&mut pending_requests, now, &state);
        pending_requests.broke(Id(1), "connection closed", now);
        servers(&mut pending_requests, now + PAUSE_MIN, &state);
        let acknowledge = FromServer::Acknowledge { shard: 0, number: 3, pace: Pace::default() };
        assert!(pending_requests.hear(acknowledge.clone(), now).unwrap());
        assert!(!pending_requests.hear(acknowledge, now).unwrap());
        assert_eq!(pending_requests.take(7), Some(Done { key: PUSH, values: Vec::new() }));
        assert_eq!((pending_requests.take(7), pending_requests.open(7)), (None, 0));
    }

    #[test]
    fn a_server_owes_no_more_than_a_window() {
        let (now, state) = (Instant::now(), state(&[1, 2]));
        let pull = |name, shard| ((shard, Request::Pull(name)), 3 << 20);
        let mut pending_requests = pending_requests(&[pull(1, 0), pull(2, 0), pull(3, 1)]);
        assert_eq!(servers(&mut pending_requests, now, &state), [1, 2]);
        assert!(servers(&mut pending_requests, now, &state).is_empty());
        let values = vec![0; 3 << 20];
        pending_requests
            .hear(FromServer::Answer { shard: 0, request: 1, pace: Pace::default(), values }, now)
            .unwrap();
        assert_eq!(servers(&mut pending_requests, now, &state), [1]);
    }

    #[test]
    fn a_delayed_request_stays_and_says_for_whom_it_waits() {
        let (now, state) = (Instant::now(), state(&[1]));
        let mut pending_requests = pending_requests(&[(PUSH, 0)]);
        servers(&mut pending_requests, now, &state);
        let slowest = Slowest { worker: Id(9), step: 2 };
        let delayed = FromServer::Delayed { shard: 0, request: PUSH.1, slowest };
        assert!(!pending_requests.hear(delayed, now).unwrap());
        assert!(
            servers(&mut pending_requests, now + PAUSE_MAX, &state).is_empty(),
            "it is not sent again"
        );
        let said = "it waits for worker 0000000000000009, which is at step 2";
        assert!(
            pending_requests.missing(&state).ends_with(said),
            "{}",
            pending_requests.missing(&state)
        );
    }

    /// A pause that ends between two calls is still a deadline, however far apart the calls are.
    #[test]
    fn no_pause_ends_unseen() {
        let (now, state) = (Instant::now(), state(&[1]));
        let mut pending_requests = pending_requests(&[(PUSH, 0)]);
        servers(&mut pending_requests, now, &state);
        pending_requests.broke(Id(1), "connection closed", now);
        let just_before = now + PAUSE_MIN - Duration::from_nanos(1);
        assert!(servers(&mut pending_requests, just_before, &state).is_empty());
        assert_eq!(pending_requests.deadline(), Some(now + PAUSE_MIN));
        assert_eq!(servers(&mut pending_requests, now + PAUSE_MAX, &state), [1]);
        assert_eq!(pending_requests.deadline(), None, "it waits for an answer alone");
    }

    #[test]
    fn errors_are_one_line() {
        let (now, mut state) = (Instant::now(), state(&[1]));
        let mut pending_requests = pending_requests(&[(PUSH, 0), ((0, Request::Pull(1)), 8)]);
        let answer =
            FromServer::Answer { shard: 0, request: 1, pace: Pace::default(), values: vec![0; 4] };
        let error = pending_requests.hear(answer, now).unwrap_err();
        assert_eq!(error.to_string(), "answer of 4 bytes, expected 8");
        state.lost = vec![0];
        let error = pending_requests.due(now, &state).unwrap_err();
        assert_eq!(error.to_string(), "shard 0 is lost: its last servers were 0000000000000001");
        state.failures.insert(Id(1), "disk full".to_owned());
        let error = pending_requests.due(now, &state).unwrap_err();
        let said = "shard 0 is lost: its last servers were 0000000000000001 (disk full)";
        assert_eq!(error.to_string(), said);
        let text = "table 9".to_owned();
        let error =
            pending_requests.hear(FromServer::SchemaError { shard: 0, request: PUSH.1, text }, now);
        assert_eq!((error.unwrap_err().kind(), pending_requests.open(7)), (Kind::Invalid, 0));
    }
}
