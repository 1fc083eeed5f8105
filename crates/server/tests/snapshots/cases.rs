//! Snapshots in a reliable network, and under single faults.

use std::time::Duration;

use thinwire_server::{Consistency, SnapshotStage};
use thinwire_testkit::net::{Fault, Weather};

use crate::job::{Job, Setup};
use crate::node::COORDINATOR;

const MS: Duration = Duration::from_millis(1);
const ALL: [Consistency; 3] = [Consistency::Sync, Consistency::Async, Consistency::Bounded(1)];

/// Returns a job that has trained for a while.
fn job(consistency: Consistency) -> Job {
    let setup = Setup { consistency, seed: 5, servers: 3, workers: 3, backups: 1 };
    let mut job = Job::new(setup, Weather::calm());
    job.run(100 * MS);
    job
}

fn stage(job: &Job) -> SnapshotStage {
    let saved = job.saved.borrow();
    saved.configuration.job_state().snapshot.clone().expect("a snapshot").stage
}

fn pushed(job: &Job) -> u64 {
    job.workers().map(|worker| worker.pushed).sum()
}

#[test]
fn without_faults_every_snapshot_is_done_and_exact() {
    for consistency in ALL {
        let mut job = job(consistency);
        for round in 1..=20 {
            job.ask(job.net.now() + MS);
            job.run(job.net.now() + 60 * MS);
            assert_eq!(job.ledger.borrow().done, round, "{consistency}: {:?}", stage(&job));
        }
        job.recover();
        assert_eq!(job.ledger.borrow().failed, 0);
    }
}

#[test]
fn a_server_that_dies_ends_the_snapshot_and_the_next_one_is_done() {
    for consistency in ALL {
        let mut job = job(consistency);
        job.ask(job.net.now());
        job.run(job.net.now() + 5 * MS);
        assert!(matches!(stage(&job), SnapshotStage::Asked | SnapshotStage::Agreed(_)));
        job.fault(Fault::Kill(1));
        job.run(job.net.now() + 40 * MS);
        assert!(matches!(stage(&job), SnapshotStage::Failed(_)), "{:?}", stage(&job));
        job.ask(job.net.now());
        job.run(job.net.now() + 60 * MS);
        assert_eq!(job.ledger.borrow().done, 1, "{consistency}: {:?}", stage(&job));
        job.recover();
    }
}

#[test]
fn training_goes_on_when_the_coordinator_leaves_in_a_snapshot() {
    for consistency in ALL {
        let mut job = job(consistency);
        job.ask(job.net.now());
        // Primaries have been ordered to hold pushes.
        job.run(job.net.now() + 5 * MS);
        job.fault(Fault::PowerOff(COORDINATOR));
        job.run(job.net.now() + 50 * MS);
        let before = pushed(&job);
        job.run(job.net.now() + 50 * MS);
        assert!(pushed(&job) > before + 10, "{consistency}: {before}");
        job.recover();
    }
}
