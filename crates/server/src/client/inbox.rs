//! Queue of messages from a client's connections to its thread.
//!
//! Law: once [`EVENTS_MAX`] messages are queued, each connection adds at most one. The coordinator's last
//! state and last error are kept in addition. Connections with further messages wait until half of the
//! queue has been taken out.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thinwire_member::Id;

use crate::configuration::JobState;
use crate::error::Error;
use crate::wire::FromServer;

/// Largest number of queued messages; the sizes of their answers are bounded by what was requested.
const EVENTS_MAX: usize = 1024;

/// Message of a connection to the client's thread.
#[derive(Debug)]
pub enum Event {
    /// The state of the job has changed.
    State(Box<JobState>),
    /// The coordinator refuses a request.
    Refused(String),
    /// The coordinator cannot be reached, or sent an invalid message.
    Away(Error),
    /// A message of a server.
    Reply(FromServer),
    /// The connection to a server ended; the number identifies the connection.
    Broken(Id, u64, Error),
}

/// Queue of messages to one thread.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    news: VecDeque<Event>,
    job: Option<Box<JobState>>,
    /// Reason why the coordinator is not reachable; newer than the queued state.
    unavailable: Option<Error>,
    /// Whether connections wait for room.
    is_full: bool,
}

impl State {
    fn next(&mut self) -> Option<Event> {
        let job = self.job.take().map(Event::State);
        job.or_else(|| self.unavailable.take().map(Event::Away)).or_else(|| self.news.pop_front())
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Queues a message. A newer state replaces an older one in the queue. Returns whether the queue is full.
    /// The connection then has to wait for [`Inbox::has_room`].
    pub fn put(&self, news: Event) -> bool {
        let mut state = self.lock();
        match news {
            Event::State(job) => (state.job, state.unavailable) = (Some(job), None),
            Event::Away(error) => state.unavailable = Some(error),
            news => state.news.push_back(news),
        }
        state.is_full |= state.news.len() >= EVENTS_MAX;
        let is_full = state.is_full;
        drop(state);
        self.changed.notify_all();
        is_full
    }

    /// Returns true once after a full queue has become half empty: waiting connections may then
    /// continue.
    pub fn has_room(&self) -> bool {
        let mut state = self.lock();
        let has_room = state.is_full && state.news.len() <= EVENTS_MAX / 2;
        state.is_full &= !has_room;
        has_room
    }

    /// Takes the next message, waiting until `deadline`.
    pub fn take(&self, deadline: Instant) -> Option<Event> {
        let mut state = self.lock();
        loop {
            if let Some(news) = state.next() {
                return Some(news);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return None;
            }
            (state, _) = self.changed.wait_timeout(state, left).expect("no holder panics");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(version: u64) -> Event {
        Event::State(Box::new(JobState { version, ..JobState::default() }))
    }

    fn names(inbox: &Inbox) -> Vec<String> {
        let name = |news| match news {
            Event::State(state) => format!("state {}", state.version),
            Event::Away(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| inbox.take(Instant::now())).map(name).collect()
    }

    #[test]
    fn the_newest_word_of_the_coordinator_is_kept() {
        let inbox = Inbox::default();
        inbox.put(state(1));
        inbox.put(Event::Away(Error::invalid("away")));
        inbox.put(state(2));
        assert_eq!(names(&inbox), ["state 2"]);
        inbox.put(state(3));
        inbox.put(Event::Away(Error::invalid("away")));
        assert_eq!(names(&inbox), ["state 3", "away"]);
    }

    #[test]
    fn connections_wait_while_the_queue_is_more_than_half_full() {
        let inbox = Inbox::default();
        let refused = |at: usize| Event::Refused(at.to_string());
        let full: Vec<bool> = (0..EVENTS_MAX).map(|at| inbox.put(refused(at))).collect();
        assert_eq!(full.iter().position(|full| *full), Some(EVENTS_MAX - 1));
        assert!(!inbox.has_room());
        for at in 0..EVENTS_MAX / 2 {
            let news = inbox.take(Instant::now());
            assert!(matches!(news, Some(Event::Refused(text)) if text == at.to_string()));
        }
        assert!(inbox.has_room() && !inbox.has_room(), "once");
        assert!(!inbox.put(refused(0)));
    }
}
