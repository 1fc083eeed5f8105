//! Participation of a server in the job's snapshots: its requests to the coordinator, and the tasks for
//! the thread that writes files.
//!
//! This is a state machine without sockets or disk. From the job's state and the shards' reports it derives
//! the next request, and hands tasks to the thread that writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_checkpoint::Location;
use thinwire_member::Id;

use crate::configuration::{JobState, Layout, SnapshotStage, SnapshotState, ViewRequest};
use crate::reports::{Reports, SnapshotReport};
use crate::snapshot::Task;

/// Time after which an incomplete snapshot is abandoned.
const LONGEST: Duration = Duration::from_secs(600);

/// Participation of a server in snapshots.
#[derive(Debug)]
pub struct SnapshotParticipant {
    own: Id,
    /// Place of snapshots, if configured.
    place: Option<Location>,
    reports: Arc<Reports>,
    /// Number of the last known snapshot, and when it became known.
    begun: (u64, Instant),
    /// Number of the last snapshot whose manifest this server wrote, and of the last that ended.
    sealed: u64,
    ended: u64,
}

impl SnapshotParticipant {
    /// Creates the state of a server that knows of no snapshot.
    pub fn new(
        own: Id,
        place: Option<Location>,
        reports: Arc<Reports>,
        now: Instant,
    ) -> SnapshotParticipant {
        SnapshotParticipant { own, place, reports, begun: (0, now), sealed: 0, ended: 0 }
    }

    /// Returns the next request to the coordinator, if there is one.
    pub fn request(
        &mut self,
        state: &JobState,
        layout: &Arc<Layout>,
        now: Instant,
    ) -> Option<ViewRequest> {
        let snapshot = state.snapshot.as_ref().filter(|snapshot| snapshot.is_under_way())?;
        let mine = self.shards(state);
        if mine.is_empty() {
            return None;
        }
        if snapshot.number > self.begun.0 {
            self.begun = (snapshot.number, now);
            self.prepare(snapshot, state, layout);
        }
        let mut report = self.reports.snapshot();
        if report.number != snapshot.number {
            report = SnapshotReport { number: snapshot.number, ..SnapshotReport::default() };
        }
        if now > self.begun.1 + LONGEST {
            let seconds = LONGEST.as_secs();
            report
                .fail(format!("server {} has not written its shards within {seconds} s", self.own));
        }
        self.answer(&snapshot.stage, report, &mine)
    }

    /// Returns a line for the user about the end of a snapshot, once per snapshot. Removes the draft of
    /// a failed snapshot.
    pub fn notice(&mut self, state: &JobState) -> Option<String> {
        let snapshot = state.snapshot.as_ref().filter(|snapshot| !snapshot.is_under_way())?;
        let number = snapshot.number;
        if number <= self.ended {
            return None;
        }
        // A server that has come after a failure does not tell its user of that.
        let is_witness = std::mem::replace(&mut self.ended, number) > 0 || number == self.begun.0;
        match &snapshot.stage {
            SnapshotStage::Done(name) => {
                let place = self.place.as_ref().filter(|_| self.sealed == number)?;
                Some(format!("snapshot {number} is in {place}/{name}"))
            }
            SnapshotStage::Failed(reason) => {
                self.reports.perform(Task::Discard { snapshot: number });
                is_witness.then(|| format!("snapshot {number} failed: {reason}"))
            }
            _ => None,
        }
    }

    fn answer(
        &mut self,
        stage: &SnapshotStage,
        report: SnapshotReport,
        mine: &BTreeSet<u32>,
    ) -> Option<ViewRequest> {
        let snapshot = report.number;
        if let Some(reason) = report.failure {
            return Some(ViewRequest::Abandon { snapshot, reason });
        }
        match stage {
            // Primaries write into the draft as soon as the frontier is agreed, so it must exist by then.
            SnapshotStage::Asked if report.is_ready && report.logged.is_superset(mine) => {
                Some(ViewRequest::Logged { snapshot, pushes: report.newest })
            }
            SnapshotStage::Agreed(_) if report.written.is_superset(mine) => {
                Some(ViewRequest::Written { snapshot })
            }
            SnapshotStage::Written(frontier) if mine.contains(&0) => {
                if self.sealed < snapshot {
                    self.sealed = snapshot;
                    let frontier = frontier.clone();
                    self.reports.perform(Task::Seal { snapshot, frontier });
                }
                report.name.map(|name| ViewRequest::Sealed { snapshot, name })
            }
            _ => None,
        }
    }

    /// Begins a snapshot, or reports why this server cannot take part.
    fn prepare(&self, snapshot: &SnapshotState, state: &JobState, layout: &Arc<Layout>) {
        let number = snapshot.number;
        let fail = |reason| self.reports.of_snapshot(number, |report| report.fail(reason));
        // A job whose shards have servers has a definition.
        let Some(definition) = state.definition.clone() else { return };
        if self.place.is_none() {
            let own = self.own;
            return fail(format!(
                "server {own} has no folder for snapshots: start all servers with --snapshot-dir FOLDER"
            ));
        }
        if self.reports.is_writing() {
            return fail(format!("server {} is still writing an earlier snapshot", self.own));
        }
        let (asker, layout) = (snapshot.asker, Arc::clone(layout));
        self.reports.perform(Task::Prepare { snapshot: number, asker, layout, definition });
    }

    /// Returns the shards whose primary this server is.
    fn shards(&self, state: &JobState) -> BTreeSet<u32> {
        let views = (0..).zip(&state.views);
        let mine = views.filter(|(_, view)| view.primary() == Some(self.own));
        mine.map(|(shard, _)| shard).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use std::path::Path;

    use super::*;
    use crate::configuration::{Definition, TableDefinition};
    use crate::frontier::Frontier;
    use crate::view::View;

    const OWN: Id = Id(Id::SERVER_BIT | 1);
    const OTHER: Id = Id(Id::SERVER_BIT | 2);

    struct Rig {
        participant: SnapshotParticipant,
        reports: Arc<Reports>,
        state: JobState,
        layout: Arc<Layout>,
        tasks: Receiver<Task>,
        now: Instant,
    }

    impl Rig {
        fn new(folder: Option<&str>) -> Rig {
            let table = TableDefinition {
                name: "t".to_owned(),
                rows: 8,
                width: 1,
                optimizer: "sgd:lr=1".to_owned(),
                initial: "zeros".to_owned(),
                seed: 0,
                stream: 0,
                values: "f32".to_owned(),
            };
            let definition = Definition {
                tables: vec![table],
                consistency: "async".to_owned(),
                shards: 3,
                backups: 0,
                servers: 2,
                restore: None,
            };
            let layout = Arc::new(definition.layout().unwrap());
            let views = [OWN, OTHER, OWN].map(|id| View::found(1, &[id])).to_vec();
            let state = JobState { definition: Some(definition), views, ..JobState::default() };
            let (reports, now) = (Arc::new(Reports::default()), Instant::now());
            let (sender, tasks) = channel();
            reports.on_task(sender);
            let participant = SnapshotParticipant::new(
                OWN,
                folder.map(|it| Location::from(Path::new(it))),
                Arc::clone(&reports),
                now,
            );
            Rig { participant, reports, state, layout, tasks, now }
        }

        fn at(&mut self, number: u64, stage: SnapshotStage) -> Option<ViewRequest> {
            self.state.snapshot = Some(SnapshotState { number, asker: Id(5), stage });
            self.participant.request(&self.state, &self.layout, self.now)
        }

        fn reason(&mut self, number: u64) -> String {
            match self.at(number, SnapshotStage::Asked) {
                Some(ViewRequest::Abandon { snapshot, reason }) if snapshot == number => reason,
                other => panic!("{other:?}"),
            }
        }
    }

    fn frontier(number: u64) -> Frontier {
        Frontier { pushes: [(Id(9), number)].into() }
    }

    #[test]
    fn it_reports_when_all_of_its_shards_have() {
        let mut rig = Rig::new(Some("folder"));
        assert_eq!(rig.at(1, SnapshotStage::Asked), None);
        assert!(matches!(rig.tasks.try_recv(), Ok(Task::Prepare { snapshot: 1, .. })));
        let report = Arc::clone(&rig.reports);
        report.of_snapshot(1, |it| it.is_ready = true);
        report.of_snapshot(1, |it| it.logged(0, &frontier(4)));
        assert_eq!(rig.at(1, SnapshotStage::Asked), None, "not shard 2");
        report.of_snapshot(1, |it| it.logged(2, &frontier(3)));
        let logged = ViewRequest::Logged { snapshot: 1, pushes: frontier(4) };
        assert_eq!(rig.at(1, SnapshotStage::Asked), Some(logged));
        let agreed = SnapshotStage::Agreed(frontier(5));
        report.of_snapshot(1, |it| it.written.extend([0]));
        assert_eq!(rig.at(1, agreed.clone()), None);
        report.of_snapshot(1, |it| it.written.extend([2]));
        assert_eq!(rig.at(1, agreed), Some(ViewRequest::Written { snapshot: 1 }));
        for _ in 0..2 {
            assert_eq!(rig.at(1, SnapshotStage::Written(frontier(5))), None);
        }
        assert!(matches!(rig.tasks.try_recv(), Ok(Task::Seal { snapshot: 1, .. })));
        assert!(rig.tasks.try_recv().is_err(), "it is sealed once");
        report.of_snapshot(1, |it| it.name = Some("name".to_owned()));
        let sealed = ViewRequest::Sealed { snapshot: 1, name: "name".to_owned() };
        assert_eq!(rig.at(1, SnapshotStage::Written(frontier(5))), Some(sealed));
        assert_eq!(rig.at(1, SnapshotStage::Done("name".to_owned())), None);
        let line = "snapshot 1 is in folder/name".to_owned();
        assert_eq!(rig.participant.notice(&rig.state), Some(line));
        assert_eq!(rig.participant.notice(&rig.state), None);
    }

    #[test]
    fn it_gives_up_what_it_cannot_write() {
        let own = "server 8000000000000001";
        let reason = Rig::new(None).reason(1);
        assert_eq!(
            reason,
            format!(
                "{own} has no folder for snapshots: start all servers with --snapshot-dir FOLDER"
            )
        );
        let mut rig = Rig::new(Some("folder"));
        assert_eq!(rig.at(1, SnapshotStage::Asked), None);
        rig.reports.of_snapshot(1, |it| it.fail("the disk is full".to_owned()));
        assert_eq!(rig.reason(1), "the disk is full");
        assert_eq!(rig.at(1, SnapshotStage::Failed("full".to_owned())), None);
        assert_eq!(rig.participant.notice(&rig.state).as_deref(), Some("snapshot 1 failed: full"));
        assert_eq!(rig.reason(2), format!("{own} is still writing an earlier snapshot"));
        (0..2).for_each(|_| rig.reports.performed());
        assert_eq!(rig.at(3, SnapshotStage::Asked), None);
        rig.now += LONGEST + Duration::from_secs(1);
        assert_eq!(rig.reason(3), format!("{own} has not written its shards within 600 s"));
    }
}
