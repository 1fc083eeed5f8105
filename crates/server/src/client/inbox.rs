//! Queue of messages from a client's connections to its thread.
//!
//! Law: at most [`NEWS_MAX`] messages of servers are queued, plus one state and one error of the coordinator.
//! Connections with further messages wait.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thinwire_member::Id;

use crate::configuration::JobState;
use crate::error::Error;
use crate::wire::FromServer;

/// Largest number of queued messages; the sizes of their answers are bounded by what was requested.
const NEWS_MAX: usize = 1024;

/// Message of a connection to the client's thread.
#[derive(Debug)]
pub enum News {
    /// The coordinator has another state.
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
    news: VecDeque<News>,
    job: Option<Box<JobState>>,
    /// Why the coordinator is away; newer than the queued state.
    away: Option<Error>,
    is_over: bool,
}

impl State {
    fn next(&mut self) -> Option<News> {
        let job = self.job.take().map(News::State);
        job.or_else(|| self.away.take().map(News::Away)).or_else(|| self.news.pop_front())
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Queues a message, waiting for room. A state replaces an older one in the queue.
    pub fn put(&self, news: News) {
        let mut state = self.lock();
        match news {
            News::State(job) => (state.job, state.away) = (Some(job), None),
            News::Away(error) => state.away = Some(error),
            news => {
                let is_full = |state: &mut State| state.news.len() >= NEWS_MAX && !state.is_over;
                state = self.changed.wait_while(state, is_full).expect("no holder panics");
                if !state.is_over {
                    state.news.push_back(news);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the next message, waiting until `deadline`.
    pub fn take(&self, deadline: Instant) -> Option<News> {
        let mut state = self.lock();
        loop {
            if let Some(news) = state.next() {
                drop(state);
                self.changed.notify_all();
                return Some(news);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return None;
            }
            (state, _) = self.changed.wait_timeout(state, left).expect("no holder panics");
        }
    }

    /// Ends all waits, and drops everything queued.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.news.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Returns whether [`Inbox::end`] was called.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Waits for a time, or until [`Inbox::end`].
    pub fn pause(&self, time: Duration) {
        let waits = |state: &mut State| !state.is_over;
        drop(self.changed.wait_timeout_while(self.lock(), time, waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(version: u64) -> News {
        News::State(Box::new(JobState { version, ..JobState::default() }))
    }

    fn names(inbox: &Inbox) -> Vec<String> {
        let name = |news| match news {
            News::State(state) => format!("state {}", state.version),
            News::Away(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| inbox.take(Instant::now())).map(name).collect()
    }

    #[test]
    fn the_newest_word_of_the_coordinator_is_kept() {
        let inbox = Inbox::default();
        inbox.put(state(1));
        inbox.put(News::Away(Error::invalid("away")));
        inbox.put(state(2));
        assert_eq!(names(&inbox), ["state 2"]);
        inbox.put(state(3));
        inbox.put(News::Away(Error::invalid("away")));
        assert_eq!(names(&inbox), ["state 3", "away"]);
    }

    #[test]
    fn who_has_too_much_to_say_waits() {
        let inbox = Inbox::default();
        let refused = |at: usize| News::Refused(at.to_string());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2 * NEWS_MAX).for_each(|at| inbox.put(refused(at))));
            let far = Instant::now() + Duration::from_secs(60);
            for at in 0..2 * NEWS_MAX {
                let news = inbox.take(far);
                assert!(matches!(news, Some(News::Refused(text)) if text == at.to_string()));
                assert!(inbox.lock().news.len() <= NEWS_MAX);
            }
        });
        inbox.end();
        (0..2 * NEWS_MAX).for_each(|at| inbox.put(refused(at)));
        assert!(names(&inbox).is_empty(), "nobody takes them");
    }
}
