//! Laws of snapshots under all faults.

use std::collections::BTreeMap;

use thinwire_server::{JobState, PushName, SnapshotStage, Write};

use crate::node::Applied;

#[derive(Default)]
pub struct Ledger {
    /// Captured tables, by snapshot and shard.
    captured: BTreeMap<(u64, u32), Applied>,
    /// Number of the last snapshot that has ended.
    ended: u64,
    pub done: u64,
    pub failed: u64,
}

impl Ledger {
    /// Law: a push is applied once, after the worker's previous push.
    pub fn applies(&self, shard: u32, write: &Write, applied: &mut Applied) {
        let Write::Update { pushes, .. } = write else { return };
        for PushName { client, number, .. } in pushes {
            let before = applied.insert(*client, *number).unwrap_or(0);
            assert_eq!(*number, before + 1, "push {number} of {client} in shard {shard}");
        }
    }

    pub fn captures(&mut self, snapshot: u64, shard: u32, applied: Applied) {
        self.captured.insert((snapshot, shard), applied);
    }

    /// Checks a state of the job.
    pub fn sees(&mut self, state: &JobState) {
        let Some(snapshot) = &state.snapshot else { return };
        match &snapshot.stage {
            SnapshotStage::Written(frontier) => {
                for shard in 0..state.views.len() as u32 {
                    let found = &self.captured[&(snapshot.number, shard)];
                    for (id, number) in &frontier.pushes {
                        // Law: every shard contains exactly the pushes up to the frontier.
                        let found = found.get(id).copied().unwrap_or(0);
                        assert_eq!(found, *number, "pushes of {id} in shard {shard}");
                    }
                }
            }
            SnapshotStage::Done(_) | SnapshotStage::Failed(_) if snapshot.number > self.ended => {
                self.ended = snapshot.number;
                let is_done = matches!(snapshot.stage, SnapshotStage::Done(_));
                *(if is_done { &mut self.done } else { &mut self.failed }) += 1;
            }
            _ => {}
        }
    }
}
