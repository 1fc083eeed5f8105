//! Laws of snapshots in the simulated network.
//!
//! A coordinator with the job's real [`thinwire_server::Configuration`], servers with several shards, and workers
//! run through faults drawn from a seed while snapshots are asked for. A snapshot whose shards are all written
//! contains exactly the pushes up to its frontier; each one ends; what it held back is applied once.

mod cases;
mod coordinator;
mod job;
mod ledger;
mod node;
mod server;
mod worker;

use std::cell::Cell;

use job::afflicted;
use thinwire_testkit::net::schedules;

fn snapshot_laws(seed: u64) -> (u64, u64) {
    let mut job = afflicted(seed);
    job.recover();
    let ledger = job.ledger.borrow();
    (ledger.done, ledger.failed)
}

#[test]
fn thousands_of_schedules_keep_the_laws() {
    let (done, failed) = (Cell::new(0), Cell::new(0));
    schedules("snapshot_laws", 2_000, |seed| {
        let (more_done, more_failed) = snapshot_laws(seed);
        done.set(done.get() + more_done);
        failed.set(failed.get() + more_failed);
    });
    let (done, failed) = (done.get(), failed.get());
    println!("{done} snapshots are done, {failed} failed");
    assert!(done > failed && failed > 0, "{done} snapshots are done, {failed} failed");
}

/// Runs the schedule that `THINWIRE_SEED` names, and shows it on standard error.
#[test]
fn one_schedule() {
    if let Some(seed) = std::env::var("THINWIRE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (done, failed) = snapshot_laws(seed);
        eprintln!("{done} snapshots are done, {failed} failed");
    }
}
