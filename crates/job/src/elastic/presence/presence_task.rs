//! Task of a presence: its thread, and what that tells the process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thinwire_member::Epoch;

use crate::elastic::membership::{Found, Membership};

/// Longest wait without a look whether the presence was dropped.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Callback of the process.
pub type Change = Arc<dyn Fn() + Send + Sync>;

/// State that the thread of a presence and its process share.
#[derive(Default)]
pub struct PresenceTask {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    epoch: Option<Epoch>,
    change: Option<Change>,
    /// The presence was dropped.
    is_dropped: bool,
    is_over: bool,
    refusal: Option<String>,
}

/// The side of the presence's thread.
impl PresenceTask {
    /// Goes from epoch to epoch until the process has left, is refused or drops the presence.
    pub fn live(&self, membership: &Membership) {
        while !self.lock().is_dropped {
            match membership.next_epoch(WAIT_MAX) {
                Ok(None) => {}
                Ok(Some(Found::Epoch(epoch))) => {
                    self.update(|state| state.epoch = Some(epoch));
                    while !membership.halt_if_told(WAIT_MAX) {}
                }
                Ok(Some(Found::Left | Found::Stopped)) => {
                    return self.update(|state| state.is_over = true);
                }
                Err(error) => {
                    return self.update(|state| state.refusal = Some(error.to_string()));
                }
            }
        }
    }

    fn update(&self, update: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        update(&mut state);
        let change = state.change.clone().filter(|_| !state.is_dropped);
        drop(state);
        self.changed.notify_all();
        change.iter().for_each(|change| change());
    }
}

/// The side of the process.
impl PresenceTask {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    pub fn epoch(&self) -> Option<Epoch> {
        self.lock().epoch.clone()
    }

    /// Waits until an epoch after `seen` has started.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Option<Epoch> {
        let is_newer = |epoch: &&Epoch| epoch.number > seen;
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            let newer = state.epoch.as_ref().filter(is_newer).cloned();
            if newer.is_some() || state.is_at_end() {
                return newer;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let left = left.unwrap_or(WAIT_MAX);
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Waits until no epoch follows; returns whether it is so by the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        while !state.is_at_end() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
        true
    }

    pub fn on_change(&self, change: Change) {
        let has_news = {
            let mut state = self.lock();
            state.change = Some(Arc::clone(&change));
            state.epoch.is_some() || state.is_at_end()
        };
        if has_news {
            change();
        }
    }

    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    pub fn refusal(&self) -> Option<String> {
        self.lock().refusal.clone()
    }

    /// Ends the thread soon.
    pub fn quit(&self) {
        self.lock().is_dropped = true;
    }
}

impl State {
    fn is_at_end(&self) -> bool {
        self.is_over || self.refusal.is_some()
    }
}
