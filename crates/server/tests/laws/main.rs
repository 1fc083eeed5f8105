//! Laws of a shard in a simulated network.
//!
//! A coordinator, up to four servers and up to three workers are subjected to faults drawn from a seed:
//! killed, stopped and restarted processes, cut links, partitions, lost, late and duplicated messages,
//! servers that are all silent for a while, and shards that move. Gradients are whole numbers, so every sum is exact. `ledger` checks the laws, `script`
//! draws the faults, and `cases` has single faults. `THINWIRE_SEED=42 cargo test one_schedule -- --nocapture`
//! prints one schedule.

mod cases;
mod coordinator;
mod job;
mod ledger;
mod node;
mod script;
mod server;
mod worker;

use std::cell::Cell;

use script::{End, shard_laws};
use thinwire_testkit::net::schedules;

#[test]
fn thousands_of_schedules_keep_the_laws() {
    let (whole, all, returns) = (Cell::new(0_u64), Cell::new(0_u64), Cell::new(0_u64));
    schedules("shard_laws", 4_000, |seed| {
        let (job, end) = shard_laws(seed);
        returns.set(returns.get() + job.saved.borrow().returns.min(1));
        whole.set(whole.get() + u64::from(end == End::Whole));
        all.set(all.get() + 1);
    });
    let (whole, all) = (whole.get(), all.get());
    println!("{whole} of {all} shards are whole in the end");
    let returns = returns.get();
    println!("in {returns} of them a server came back with its copy when none was left");
    assert!(50 * returns >= all, "{returns} of {all} shards had servers that came back");
    assert!(10 * whole >= 7 * all, "{whole} of {all} shards are whole in the end");
}

#[test]
fn equal_seeds_give_equal_jobs() {
    for seed in 0..10 {
        let digest = |seed| shard_laws(seed).0.net.digest();
        assert_eq!(digest(seed), digest(seed));
        assert_ne!(digest(seed), digest(seed + 10));
    }
}

/// Runs the schedule with the seed in `THINWIRE_SEED`, and prints it on standard error.
#[test]
fn one_schedule() {
    if let Some(seed) = std::env::var("THINWIRE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (job, end) = shard_laws(seed);
        eprintln!("{end:?}: {}", job.describe());
    }
}
