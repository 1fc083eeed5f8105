//! News for the thread of a client, from its connections.
//!
//! Law: at most [`NEWS_MAX`] messages of servers wait, and one state or one reason for which there is none. Who
//! has more to say waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thinwire_member::Id;

use crate::configuration::JobState;
use crate::error::Error;
use crate::wire::FromServer;

/// Most messages of servers that wait; their answers are bounded by what was asked for.
const NEWS_MAX: usize = 1024;

/// News of a connection.
#[derive(Debug)]
pub enum News {
    /// The coordinator has another state.
    State(Box<JobState>),
    /// The coordinator refuses a request.
    Refused(String),
    /// The coordinator cannot be reached, or says what none does.
    Away(Error),
    /// A server has said something.
    Reply(FromServer),
    /// The connection to a server has ended; the number is that of the connection.
    Broken(Id, u64, Error),
}

/// News that wait for one thread.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    news: VecDeque<News>,
    job: Option<Box<JobState>>,
    /// Why the coordinator is away; later than the state that waits.
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

    /// Puts news in, as soon as there is room. A newer state replaces the one that waits.
    pub fn put(&self, news: News) {
        let mut state = self.lock();
        match news {
            News::State(job) => (state.job, state.away) = (Some(job), None),
            News::Away(error) => state.away = Some(error),
            news => {
                let is_full = |state: &mut State| state.news.len() >= NEWS_MAX && !state.is_over;
                state = self.changed.wait_while(state, is_full).expect("no holder panics");
                state.news.push_back(news);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for news until `deadline`.
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

    /// Lets nobody wait any more, and keeps nothing.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.news.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Returns whether nobody takes news any more.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Waits for a time, or until nobody takes news any more.
    pub fn pause(&self, time: Duration) {
        let waits = |state: &mut State| !state.is_over;
        drop(self.changed.wait_timeout_while(self.lock(), time, waits));
    }
}
