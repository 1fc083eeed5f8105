//! Stages of a snapshot of a job: the state of all shards after the same pushes.
//!
//! Each primary reports the pushes in its log and admits no newer ones. The frontier is the newest push of
//! each worker in any log. A push in one shard's log is already under way to the other shards, so each shard
//! soon reaches the frontier, copies its tables and continues.
//!
//! Laws: every snapshot ends as done or failed. It fails if the servers of a shard or the workers
//! change, or if a primary abandons it. Snapshots are numbered, and at most one is under way.

use thinwire_member::Id;

use super::Configuration;
use super::state::{SnapshotStage, SnapshotState};
use crate::error::line;
use crate::frontier::Frontier;
use crate::view::View;

/// Largest length in bytes of a snapshot's name, or of the reason why it failed.
const TEXT_BYTES_MAX: usize = 1024;

/// Reports of servers in the current stage. They are not saved, because servers repeat them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Servers that have reported.
    from: Vec<Id>,
    /// Newest push of each worker in any report.
    newest: Frontier,
}

impl Configuration {
    /// Begins the snapshot with this number. A repeated request changes nothing.
    pub(super) fn begin_snapshot(&mut self, from: Id, number: u64) -> Result<(), String> {
        let last = self.state.snapshot.as_ref();
        let next = last.map_or(0, |last| last.number) + 1;
        match last {
            Some(last) if (last.number, last.asker) == (number, from) => return Ok(()),
            Some(last) if last.is_under_way() => {
                return Err(format!("snapshot {} is under way", last.number));
            }
            _ if number != next => {
                return Err(format!("snapshot number {number}, expected {next}"));
            }
            _ if !self.state.is_founded() => {
                return Err("a snapshot needs the servers of the job, which have not started yet"
                    .to_owned());
            }
            _ => {}
        }
        if let Some(shard) = self.state.lost.first() {
            return Err(format!("a snapshot needs shard {shard}, which is lost"));
        }
        if let Some(shard) = self.state.silent.first() {
            return Err(format!("a snapshot needs shard {shard}, whose servers are silent"));
        }
        self.heard = Heard::default();
        let snapshot = SnapshotState { number, asker: from, stage: SnapshotStage::Asked };
        self.change(|state| state.snapshot = Some(snapshot));
        Ok(())
    }

    /// Handles the report of the newest pushes in a server's logs.
    pub(super) fn logged(
        &mut self,
        from: Id,
        snapshot: u64,
        pushes: &Frontier,
    ) -> Result<(), String> {
        if !matches!(self.stage_of(snapshot), Some(SnapshotStage::Asked)) {
            return Ok(());
        }
        let (found, expected) = (pushes.pushes.len(), self.state.workers.ids.len());
        if !self.state.workers.ids.iter().all(|id| pushes.pushes.contains_key(id))
            || found != expected
        {
            return Err(format!("a report of {found} workers, expected the job's {expected}"));
        }
        self.heard.newest.join(pushes);
        if self.is_heard_of_all(from)? {
            let frontier = std::mem::take(&mut self.heard).newest;
            self.enter(SnapshotStage::Agreed(frontier));
        }
        Ok(())
    }

    /// Handles the report that a server has written its shards.
    pub(super) fn written(&mut self, from: Id, snapshot: u64) -> Result<(), String> {
        let Some(SnapshotStage::Agreed(frontier)) = self.stage_of(snapshot).cloned() else {
            return Ok(());
        };
        if self.is_heard_of_all(from)? {
            self.heard = Heard::default();
            self.enter(SnapshotStage::Written(frontier));
        }
        Ok(())
    }

    /// Handles the report that the manifest is written.
    pub(super) fn sealed(&mut self, from: Id, snapshot: u64, name: &str) -> Result<(), String> {
        if !matches!(self.stage_of(snapshot), Some(SnapshotStage::Written(_))) {
            return Ok(());
        }
        if self.state.views.first().and_then(View::primary) != Some(from) {
            return Err(format!("server {from} is not the primary of shard 0"));
        }
        self.enter(SnapshotStage::Done(shortened(name)));
        Ok(())
    }

    /// Fails a snapshot at the request of a server.
    pub(super) fn abandon(&mut self, from: Id, snapshot: u64, reason: &str) -> Result<(), String> {
        if !from.is_server() {
            return Err(format!("process {from} is not a server, so it cannot abandon a snapshot"));
        }
        if self.stage_of(snapshot).is_some() {
            self.enter(SnapshotStage::Failed(shortened(reason)));
        }
        Ok(())
    }

    /// Fails the snapshot that is under way, if there is one.
    pub(super) fn interrupt(&mut self, reason: impl FnOnce() -> String) {
        if self.state.snapshot.as_ref().is_some_and(SnapshotState::is_under_way) {
            self.enter(SnapshotStage::Failed(reason()));
        }
    }

    fn enter(&mut self, stage: SnapshotStage) {
        self.change(|state| {
            if let Some(snapshot) = &mut state.snapshot {
                snapshot.stage = stage;
            }
        });
    }

    /// Returns the stage of the snapshot with this number if it is under way.
    fn stage_of(&self, number: u64) -> Option<&SnapshotStage> {
        let snapshot = self.state.snapshot.as_ref();
        let snapshot = snapshot.filter(|it| it.number == number && it.is_under_way());
        snapshot.map(|snapshot| &snapshot.stage)
    }

    /// Adds the report of a server. Returns whether every primary's server has reported.
    fn is_heard_of_all(&mut self, from: Id) -> Result<bool, String> {
        let primaries = || self.state.views.iter().filter_map(View::primary);
        if !primaries().any(|id| id == from) {
            return Err(format!("server {from} is the primary of no shard"));
        }
        if !self.heard.from.contains(&from) {
            self.heard.from.push(from);
        }
        Ok(primaries().all(|id| self.heard.from.contains(&id)))
    }
}

/// Returns a text on one line, cut to [`TEXT_BYTES_MAX`] bytes.
fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    line(&text[..end])
}
