//! Laws of membership in the simulated network.
//!
//! A coordinator and up to five workers train through faults drawn from a seed: killed, stopped and
//! restarted processes, cut links, partitions, lost, late and repeated messages, leaves and resizes.
//! `ledger` holds the laws that hold at every moment, `script` that of recovery, and `cases` what
//! follows for a user, fault by fault. `THINWIRE_SEED=42 cargo test one_schedule -- --nocapture` shows
//! one schedule.

mod cases;
mod job;
mod ledger;
mod script;
mod training;
mod worker;

use std::cell::Cell;

use script::{End, roster_laws};
use thinwire_testkit::net::schedules;

#[test]
fn a_hundred_thousand_schedules_keep_the_laws() {
    let (whole, all) = (Cell::new(0_u64), Cell::new(0_u64));
    schedules("roster_laws", 100_000, |seed| {
        let (_, end) = roster_laws(seed);
        whole.set(whole.get() + u64::from(end == End::Whole));
        all.set(all.get() + 1);
    });
    let (whole, all) = (whole.get(), all.get());
    println!("{whole} of {all} jobs are whole in the end");
    assert!(5 * whole >= 4 * all, "{whole} of {all} jobs are whole in the end");
}

#[test]
fn equal_seeds_give_equal_jobs() {
    for seed in 0..30 {
        let digest = |seed| roster_laws(seed).0.net.digest();
        assert_eq!(digest(seed), digest(seed));
        assert_ne!(digest(seed), digest(seed + 30));
    }
}

/// Runs the schedule that `THINWIRE_SEED` names, and shows it on standard error.
#[test]
fn one_schedule() {
    if let Some(seed) = std::env::var("THINWIRE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (job, end) = roster_laws(seed);
        eprintln!("{end:?}: {}", script::describe(&job));
    }
}
