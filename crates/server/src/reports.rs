//! Reports of primaries that wait for the coordinator.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use thinwire_link::Waker;
use thinwire_member::Id;

/// Learners that are ready, with the number of the view in which they are, by shard and learner.
pub type Ready = BTreeMap<(u32, Id), u64>;

/// Reports of primaries that wait for the thread that speaks with the coordinator: at most one per
/// learner of a shard.
#[derive(Debug, Default)]
pub struct Reports {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Ready,
    waker: Option<Waker>,
    is_over: bool,
    /// Why the server can keep its rows no longer.
    failure: Option<String>,
}

impl Reports {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Reports that a learner is ready.
    pub fn ready(&self, shard: u32, view: u64, learner: Id) {
        let mut state = self.lock();
        state.ready.insert((shard, learner), view);
        state.waker.iter().for_each(Waker::wake);
    }

    /// Reports that the server can keep its rows no longer, with the reason in one line.
    pub fn fail(&self, reason: String) {
        let mut state = self.lock();
        state.failure.get_or_insert(reason);
        state.waker.iter().for_each(Waker::wake);
    }

    /// Returns why the server can keep its rows no longer, if so.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Takes all reports out.
    pub fn take(&self) -> Ready {
        std::mem::take(&mut self.lock().ready)
    }

    /// Sets what ends the wait of the thread that takes reports.
    pub fn on_report(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Ends that thread.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.waker.iter().for_each(Waker::wake);
    }

    /// Returns whether that thread is to end.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_over || state.failure.is_some()
    }
}
