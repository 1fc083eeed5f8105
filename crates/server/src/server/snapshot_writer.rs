//! Thread of a server that writes snapshots, so that no other thread waits for the disk.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use thinwire_checkpoint::{Error, Kind, Store};

use crate::frontier::Frontier;
use crate::reports::Reports;
use crate::snapshot::{Captured, Draft, Task};

/// Writer of snapshots.
pub struct SnapshotWriter {
    store: Arc<dyn Store>,
    reports: Arc<Reports>,
    /// Snapshot being written, and its number.
    draft: Option<(u64, Draft)>,
}

impl SnapshotWriter {
    /// Creates a writer into a store.
    pub fn new(store: Arc<dyn Store>, reports: Arc<Reports>) -> SnapshotWriter {
        SnapshotWriter { store, reports, draft: None }
    }

    /// Performs tasks until the channel or the server ends.
    pub fn run(mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            if self.reports.is_over() {
                return;
            }
            let snapshot = task.snapshot();
            let done = self.perform(task);
            self.reports.performed();
            if let Err(reason) = done {
                self.reports.of_snapshot(snapshot, |report| report.fail(reason.to_string()));
            }
        }
    }

    fn perform(&mut self, task: Task) -> Result<(), Error> {
        match task {
            Task::Prepare { snapshot, asker, layout, definition } => {
                let store = Arc::clone(&self.store);
                self.draft =
                    Some((snapshot, Draft::create(store, snapshot, asker, definition, layout)?));
                self.reports.of_snapshot(snapshot, |report| report.is_ready = true);
            }
            Task::Write(captured) => self.write(&captured)?,
            Task::Seal { snapshot, frontier } => self.seal(snapshot, frontier)?,
            Task::Discard { snapshot } => {
                let draft = self.draft.take_if(|(number, _)| *number == snapshot);
                draft.into_iter().for_each(|(_, draft)| draft.discard());
            }
        }
        Ok(())
    }

    fn write(&self, captured: &Captured) -> Result<(), Error> {
        let Captured { snapshot, shard, tables } = captured;
        let draft = self.draft.as_ref().filter(|(number, _)| number == snapshot);
        let (_, draft) = draft.ok_or_else(|| none(*snapshot))?;
        draft.write(*shard, tables)?;
        self.reports.of_snapshot(*snapshot, |report| {
            report.written.insert(*shard);
        });
        Ok(())
    }

    fn seal(&mut self, snapshot: u64, frontier: Frontier) -> Result<(), Error> {
        let draft = self.draft.take_if(|(number, _)| *number == snapshot);
        let (_, draft) = draft.ok_or_else(|| none(snapshot))?;
        let name = draft.seal(frontier)?;
        self.reports.of_snapshot(snapshot, |report| report.name = Some(name));
        Ok(())
    }
}

fn none(snapshot: u64) -> Error {
    Error::new(Kind::Missing, format!("snapshot {snapshot} was not begun here"))
}
