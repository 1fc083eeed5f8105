//! Reports of primaries that wait for the coordinator, and tasks that wait for the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use thinwire_link::Waker;
use thinwire_member::Id;

use crate::frontier::Frontier;
use crate::snapshot::Task;

/// Learners that are ready, with the number of the view in which they are, by shard and learner.
pub type Ready = BTreeMap<(u32, Id), u64>;

/// What a server has to say about the last snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotReport {
    /// Number of the snapshot.
    pub number: u64,
    /// Whether its folder can be written.
    pub is_ready: bool,
    /// Shards that have said what they have logged.
    pub logged: BTreeSet<u32>,
    /// Newest pushes that they have logged.
    pub newest: Frontier,
    /// Shards that are written.
    pub written: BTreeSet<u32>,
    /// Name of its folder, if this server has written the manifest.
    pub name: Option<String>,
    /// Reason why it cannot be made, if that is so.
    pub failure: Option<String>,
}

impl SnapshotReport {
    /// Notes what a shard has logged.
    pub fn logged(&mut self, shard: u32, pushes: &Frontier) {
        self.logged.insert(shard);
        self.newest.join(pushes);
    }

    /// Notes that it cannot be made; the first reason stands.
    pub fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }
}

/// Reports of primaries that wait for the thread that speaks with the coordinator: at most one per
/// learner of a shard, and one about a snapshot.
#[derive(Debug, Default)]
pub struct Reports {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Ready,
    snapshot: SnapshotReport,
    /// Thread that writes, and the number of its tasks: at most one per shard, and three more.
    archive: Option<Sender<Task>>,
    tasks: usize,
    waker: Option<Waker>,
    is_over: bool,
    /// Why the server can keep its rows no longer.
    failure: Option<String>,
}

impl State {
    /// Changes the report about a snapshot; of an older one than the last, there is none.
    fn of_snapshot(&mut self, number: u64, change: impl FnOnce(&mut SnapshotReport)) {
        if number > self.snapshot.number {
            self.snapshot = SnapshotReport { number, ..SnapshotReport::default() };
        }
        if number == self.snapshot.number {
            change(&mut self.snapshot);
            self.waker.iter().for_each(Waker::wake);
        }
    }
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

    /// Takes the reports about learners out.
    pub fn take(&self) -> Ready {
        std::mem::take(&mut self.lock().ready)
    }

    /// Changes the report about the snapshot of this number, unless there was a later one.
    pub fn of_snapshot(&self, number: u64, change: impl FnOnce(&mut SnapshotReport)) {
        self.lock().of_snapshot(number, change);
    }

    /// Returns the report about the last snapshot.
    pub fn snapshot(&self) -> SnapshotReport {
        self.lock().snapshot.clone()
    }

    /// Gives the thread that writes a task; without one, nothing is written.
    pub fn perform(&self, task: Task) {
        let mut state = self.lock();
        let is_taken = state.archive.as_ref().is_some_and(|archive| archive.send(task).is_ok());
        state.tasks += usize::from(is_taken);
    }

    /// Notes that a task is done.
    pub fn performed(&self) {
        self.lock().tasks -= 1;
    }

    /// Returns whether the thread that writes has anything to do.
    pub fn is_writing(&self) -> bool {
        self.lock().tasks > 0
    }

    /// Sets who writes.
    pub fn on_task(&self, archive: Sender<Task>) {
        self.lock().archive = Some(archive);
    }

    /// Sets what ends the wait of the thread that takes reports.
    pub fn on_report(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Ends that thread.
    pub fn end(&self) {
        let mut state = self.lock();
        (state.is_over, state.archive) = (true, None);
        state.waker.iter().for_each(Waker::wake);
    }

    /// Returns whether that thread is to end.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_over || state.failure.is_some()
    }
}
