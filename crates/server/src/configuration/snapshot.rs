//! Snapshot of a job: the state of all its shards after the same pushes, as the coordinator decides it.
//!
//! Every primary says which pushes it has logged and lets no newer one in; the frontier is the newest of all of
//! them. A push that one shard has logged is on its way to the others, so each reaches the frontier soon, gives
//! its tables out, and goes on.
//!
//! Laws: a snapshot ends by being done or failed; it fails when the servers of a shard or the workers change, or
//! when a primary gives it up; there is one at a time, and they are numbered.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use super::Configuration;
use crate::error::line;
use crate::frontier::Frontier;
use crate::hex;
use crate::shard::Order;
use crate::view::View;

/// Most bytes of the name of a snapshot, or of the reason why there is none.
const TEXT_BYTES_MAX: usize = 1024;

/// Snapshot of a job that is under way, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotState {
    /// Number among the job's snapshots, from 1.
    pub number: u64,
    /// Process that has asked for it.
    #[serde(with = "hex")]
    pub asker: Id,
    /// How far it has come.
    pub stage: SnapshotStage,
}

/// Stage of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum SnapshotStage {
    /// Primaries hold newer pushes back, and say what they have logged.
    Asked,
    /// Primaries write their shards as of this frontier.
    Agreed(Frontier),
    /// All shards are written, and the primary of the first one writes the manifest.
    Written(Frontier),
    /// It is whole, in a folder of this name.
    Done(String),
    /// It was given up, for this reason.
    Failed(String),
}

/// Reports about the snapshot that is under way. They are made again for a coordinator that has lost them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Primaries that have reported in this stage.
    from: Vec<Id>,
    /// Newest pushes that any of them has logged.
    newest: Frontier,
}

impl SnapshotState {
    /// Returns whether it is neither done nor failed.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.stage, SnapshotStage::Done(_) | SnapshotStage::Failed(_))
    }

    /// Returns what it asks of the primaries.
    pub fn order(&self) -> Order {
        match &self.stage {
            SnapshotStage::Asked => Order::Hold,
            SnapshotStage::Agreed(frontier) => Order::Take(Arc::new(frontier.clone())),
            _ => Order::Release,
        }
    }
}

impl Configuration {
    /// Begins the snapshot of this number. A request that is repeated changes nothing.
    pub(super) fn begin_snapshot(&mut self, from: Id, number: u64) -> Result<(), String> {
        let last = self.state.snapshot.as_ref();
        let next = last.map_or(0, |last| last.number) + 1;
        match last {
            Some(last) if (last.number, last.asker) == (number, from) => return Ok(()),
            Some(last) if last.is_under_way() => {
                return Err(format!("snapshot {} is under way", last.number));
            }
            _ if number != next => return Err(format!("snapshot {number}, the next is {next}")),
            _ if !self.state.is_founded() => {
                return Err("a snapshot of a job whose servers are not there".to_owned());
            }
            _ => {}
        }
        if let Some(shard) = self.state.lost.first() {
            return Err(format!("a snapshot without shard {shard}, which is lost"));
        }
        self.heard = Heard::default();
        let snapshot = SnapshotState { number, asker: from, stage: SnapshotStage::Asked };
        self.change(|state| state.snapshot = Some(snapshot));
        Ok(())
    }

    /// Takes note of what the primaries of a server have logged.
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

    /// Takes note that a server has written the shards whose primary it is.
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

    /// Takes note that the manifest is written.
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

    /// Gives a snapshot up.
    pub(super) fn abandon(&mut self, from: Id, snapshot: u64, reason: &str) -> Result<(), String> {
        if !from.is_server() {
            return Err(format!("process {from} is no server, and gives no snapshot up"));
        }
        if self.stage_of(snapshot).is_some() {
            self.enter(SnapshotStage::Failed(shortened(reason)));
        }
        Ok(())
    }

    /// Gives the snapshot up that is under way, if there is one.
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

    /// Returns the stage of the snapshot of this number, if it is under way.
    fn stage_of(&self, number: u64) -> Option<&SnapshotStage> {
        let snapshot = self.state.snapshot.as_ref();
        let snapshot = snapshot.filter(|it| it.number == number && it.is_under_way());
        snapshot.map(|snapshot| &snapshot.stage)
    }

    /// Notes the report of a server, and returns whether all that are the primary of a shard have reported.
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

/// Returns a text in one line that is not too long.
fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    line(&text[..end])
}
