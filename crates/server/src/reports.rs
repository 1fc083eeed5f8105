//! Reports of primaries for the coordinator, and tasks for the thread that writes to disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use thinwire_link::Waker;
use thinwire_member::Id;

use crate::frontier::Frontier;
use crate::snapshot::Task;

/// View numbers of ready learners, by shard and learner.
pub type Ready = BTreeMap<(u32, Id), u64>;

/// State of the last snapshot on this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotReport {
    /// Number of the snapshot.
    pub number: u64,
    /// Whether the folder of the draft exists.
    pub is_ready: bool,
    /// Shards that have reported their newest pushes.
    pub logged: BTreeSet<u32>,
    /// Newest pushes in the logs of the shards that have reported them.
    pub newest: Frontier,
    /// Shards whose files are written.
    pub written: BTreeSet<u32>,
    /// Name of the snapshot's folder, once this server has written the manifest.
    pub name: Option<String>,
    /// Reason why the snapshot failed, if it did.
    pub failure: Option<String>,
}

impl SnapshotReport {
    /// Adds the newest pushes in the log of a shard.
    pub fn logged(&mut self, shard: u32, pushes: &Frontier) {
        self.logged.insert(shard);
        self.newest.join(pushes);
    }

    /// Marks the snapshot as failed; the first reason is kept.
    pub fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }
}

/// Reports for the part of the node that talks to the coordinator: at most one per learner of a shard, and
/// one about the last snapshot. The thread that writes snapshots also reports here.
#[derive(Debug, Default)]
pub struct Reports {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Ready,
    /// Shards that no server of the epoch has and whose copies are here, with their last views.
    kept: Vec<(u32, u64)>,
    snapshot: SnapshotReport,
    /// Channel to the thread that writes snapshots, and the number of that thread's unfinished tasks: at
    /// most one per shard, plus three.
    writer: Option<Sender<Task>>,
    tasks: usize,
    waker: Option<Waker>,
    /// Whether a report has come since the last check.
    is_due: bool,
    is_over: bool,
    /// Reason why this server lost its rows, if it did.
    failure: Option<String>,
}

impl State {
    fn wake(&mut self) {
        self.is_due = true;
        self.waker.iter().for_each(Waker::wake);
    }

    /// Changes the report about a snapshot, unless a later one has begun.
    fn of_snapshot(&mut self, number: u64, change: impl FnOnce(&mut SnapshotReport)) {
        if number > self.snapshot.number {
            self.snapshot = SnapshotReport { number, ..SnapshotReport::default() };
        }
        if number == self.snapshot.number {
            change(&mut self.snapshot);
            self.wake();
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
        state.wake();
    }

    /// Reports that this server lost its rows, with a one-line reason.
    pub fn fail(&self, reason: String) {
        let mut state = self.lock();
        state.failure.get_or_insert(reason);
        state.wake();
    }

    /// Returns the reason why this server lost its rows, if it did.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Reports the shards that no server of the epoch has and whose copies are here, with their last views. This
    /// replaces the last such report.
    pub fn keep(&self, views: Vec<(u32, u64)>) {
        let mut state = self.lock();
        if state.kept != views {
            state.kept = views;
            state.wake();
        }
    }

    /// Returns the last report of kept copies.
    pub fn recovered(&self) -> Vec<(u32, u64)> {
        self.lock().kept.clone()
    }

    /// Removes and returns the reports about learners.
    pub fn take(&self) -> Ready {
        std::mem::take(&mut self.lock().ready)
    }

    /// Changes the report about the snapshot of this number, unless a later one has begun.
    pub fn of_snapshot(&self, number: u64, change: impl FnOnce(&mut SnapshotReport)) {
        self.lock().of_snapshot(number, change);
    }

    /// Returns the report about the last snapshot.
    pub fn snapshot(&self) -> SnapshotReport {
        self.lock().snapshot.clone()
    }

    /// Passes a task to the thread that writes snapshots; drops it if there is no such thread.
    pub fn perform(&self, task: Task) {
        let mut state = self.lock();
        let is_taken = state.writer.as_ref().is_some_and(|writer| writer.send(task).is_ok());
        state.tasks += usize::from(is_taken);
    }

    /// Counts a task as finished.
    pub fn performed(&self) {
        self.lock().tasks -= 1;
    }

    /// Returns whether the thread that writes snapshots has unfinished tasks.
    pub fn is_writing(&self) -> bool {
        self.lock().tasks > 0
    }

    /// Sets the channel to the thread that writes snapshots.
    pub fn on_task(&self, writer: Sender<Task>) {
        self.lock().writer = Some(writer);
    }

    /// Returns whether there are reports that were not handled yet.
    pub fn is_due(&self) -> bool {
        self.lock().is_due
    }

    /// Records that all reports so far are handled.
    pub fn looked(&self) {
        self.lock().is_due = false;
    }

    /// Asks for the reports to be handled.
    pub fn wake(&self) {
        self.lock().wake();
    }

    /// Sets the waker of the endpoint that handles reports.
    pub fn on_report(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Tells the thread that takes tasks to end.
    pub fn end(&self) {
        let mut state = self.lock();
        (state.is_over, state.writer) = (true, None);
    }

    /// Returns whether tasks are no longer needed.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_over || state.failure.is_some()
    }
}
