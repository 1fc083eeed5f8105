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
        self.lock().is_over
    }
}
