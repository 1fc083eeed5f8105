//! Single faults in an otherwise reliable network.

use std::time::Duration;

use thinwire_server::{Consistency, Options};
use thinwire_testkit::net::{Fault, Weather};

use crate::job::{Job, Setup};
use crate::node::{COORDINATOR, Packet, node};

const MS: Duration = Duration::from_millis(1);

/// Returns a job that has trained for a while.
fn job(consistency: Consistency, servers: usize, workers: usize) -> Job {
    let options = Options { beat: 3 * MS, ..Options::new(consistency) };
    let mut job =
        Job::new(Setup { options, seed: 3, servers, workers, copies: 2 }, Weather::calm());
    job.run(100 * MS);
    assert!(job.ledger.borrow().pushes() > 10);
    job
}

fn primary(job: &Job) -> usize {
    job.saved.borrow().view.as_ref().and_then(|view| view.primary()).map(node).expect("a primary")
}

/// Ends all workers and checks the copies.
fn finish(job: &mut Job) {
    job.order_workers(job.net.now(), &Packet::Stop);
    let end = job.net.now() + 1000 * MS;
    assert!(job.run_until(end, Job::is_whole).is_some(), "{}", job.describe());
    job.check_copies();
}

const ALL: [Consistency; 3] = [Consistency::Sync, Consistency::Async, Consistency::Bounded(2)];

#[test]
fn a_shard_goes_on_when_its_primary_or_its_backup_is_killed() {
    for consistency in ALL {
        for offset in [0, 1] {
            let mut job = job(consistency, 3, 3);
            let view = job.saved.borrow().view.clone().expect("a view");
            let pushes = job.ledger.borrow().pushes();
            job.fault(Fault::Kill(node(view.replicas[offset])));
            let goes_on = |job: &Job| job.ledger.borrow().pushes() > pushes + 20;
            let end = job.net.now() + 150 * MS;
            assert!(job.run_until(end, goes_on).is_some(), "{consistency}, replica {offset}");
            finish(&mut job);
        }
    }
}

#[test]
fn a_primary_that_only_the_coordinator_cannot_reach_acknowledges_nothing() {
    let mut job = job(Consistency::Async, 2, 2);
    let (first, before) = (primary(&job), job.ledger.borrow().len());
    job.fault(Fault::Cut { from: first, to: COORDINATOR });
    job.fault(Fault::Cut { from: COORDINATOR, to: first });
    job.run(job.net.now() + 60 * MS);
    assert_ne!(primary(&job), first);
    let committed = |job: &Job, node| job.server(node).expect("it lives").shard.committed();
    let (old, new) = (committed(&job, first), committed(&job, primary(&job)));
    assert!(new.expect("a copy") > before + 10 && new > old, "{old:?}, {new:?}");
    job.fault(Fault::Heal);
    finish(&mut job);
}

#[test]
fn training_goes_on_while_the_coordinator_is_away() {
    let mut job = job(Consistency::Bounded(1), 2, 3);
    let pushes = job.ledger.borrow().pushes();
    job.fault(Fault::PowerOff(COORDINATOR));
    job.run(job.net.now() + 200 * MS);
    assert!(job.ledger.borrow().pushes() > pushes + 50);
    job.fault(Fault::Boot(COORDINATOR));
    finish(&mut job);
}

#[test]
fn a_shard_goes_on_when_servers_come_back_that_were_all_silent() {
    for consistency in ALL {
        let mut job = job(consistency, 2, 2);
        let pushes = job.ledger.borrow().pushes();
        [1, 2].into_iter().for_each(|server| job.fault(Fault::Pause(server)));
        job.run(job.net.now() + 60 * MS);
        assert!(job.saved.borrow().is_unavailable && job.saved.borrow().members.is_empty());
        job.fault(Fault::Resume(1));
        let goes_on = |job: &Job| job.ledger.borrow().pushes() > pushes + 20;
        let end = job.net.now() + 150 * MS;
        assert!(job.run_until(end, goes_on).is_some(), "{consistency}");
        assert_eq!(job.saved.borrow().returns, 1);
        job.fault(Fault::Resume(2));
        finish(&mut job);
    }
}

#[test]
fn a_shard_that_moves_stops_for_less_than_a_silence() {
    let mut job = job(Consistency::Async, 4, 2);
    let first = job.saved.borrow().view.clone().expect("a view");
    for _ in 0..4 {
        job.net.order(job.net.now(), COORDINATOR, Packet::Move);
        for _ in 0..8 {
            let pushes = job.ledger.borrow().pushes();
            job.run(job.net.now() + 15 * MS);
            assert!(job.ledger.borrow().pushes() > pushes, "{}", job.describe());
        }
    }
    let last = job.saved.borrow().view.clone().expect("a view");
    assert!(last.number > first.number + 4 && last.replicas != first.replicas);
    finish(&mut job);
}

#[test]
fn a_lost_worker_stalls_the_others_until_it_is_excluded() {
    for (consistency, stalls) in [(Consistency::Sync, true), (Consistency::Async, false)] {
        let mut job = job(consistency, 2, 3);
        job.fault(Fault::PowerOff(job.setup.servers + 1));
        job.run(job.net.now() + 8 * MS);
        let pushes = job.ledger.borrow().pushes();
        job.run(job.net.now() + 2 * MS);
        assert_eq!(job.ledger.borrow().pushes() == pushes, stalls, "{consistency}");
        job.run(job.net.now() + 60 * MS);
        assert!(job.ledger.borrow().pushes() > pushes, "{consistency}");
        job.fault(Fault::Boot(job.setup.servers + 1));
        finish(&mut job);
    }
}

#[test]
fn staleness_reaches_its_bound_and_is_published() {
    let mut job = job(Consistency::Bounded(2), 2, 3);
    job.run(400 * MS);
    assert_eq!(job.ledger.borrow().staleness, 2);
    let server = job.server(primary(&job)).expect("it lives");
    let counts: Vec<u64> = (0..4)
        .map(|steps| server.shard.staleness().values().map(|s| s.counts()[steps]).sum())
        .collect();
    assert!(counts[0] > 0 && counts[2] > 0 && counts[3] == 0, "{counts:?}");
    finish(&mut job);
}
