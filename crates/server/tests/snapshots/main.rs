//! Laws of snapshots in a simulated network.
//!
//! A coordinator with the real [`thinwire_server::Configuration`], servers with several shards, and workers
//! are subjected to faults drawn from a seed while snapshots are requested. Laws: a snapshot whose shards are
//! all written contains exactly the pushes up to its frontier; every snapshot ends; held pushes are applied
//! once.

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

/// Runs the schedule with the seed in `THINWIRE_SEED`, and prints it on standard error.
#[test]
fn one_schedule() {
    if let Some(seed) = std::env::var("THINWIRE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (done, failed) = snapshot_laws(seed);
        eprintln!("{done} snapshots are done, {failed} failed");
    }
}
