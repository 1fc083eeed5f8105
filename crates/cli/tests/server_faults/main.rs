//! Counted pushes to real servers, while processes are killed or cut off.
//!
//! Two workers push ones to all rows of a table whose optimiser subtracts them exactly, so the rows show how
//! often each push was applied. Law: an acknowledged push is applied exactly once, whatever fails.
//!
//! `THINWIRE_KILLS=20` sets the number of rounds of each fault; `--nocapture` shows the longest time of a
//! push.

#[path = "../support/mod.rs"]
mod support;

mod counter;
mod job;
mod network;

use std::time::Duration;

use counter::PUSHES;
use job::CountedJob;
use network::{Network, Place};
use support::SILENCE;

/// Time for which a server is cut off: longer than the silence after which it is lost.
const CUT: Duration = Duration::from_secs(15);

/// Runs a fault for the requested number of rounds.
fn rounds(name: &str, network: &Network, (servers, backups): (u32, u32), fault: Fault) {
    let rounds = std::env::var("THINWIRE_KILLS").ok().and_then(|text| text.parse().ok());
    for round in 0..rounds.unwrap_or(1) {
        let mut job = CountedJob::start(&format!("{name}-{round}"), network, servers, backups);
        job.wait_for_pushes(50 + 37 * (round % 15));
        fault(&mut job, round as usize);
        let ended = job.finish();
        let (acknowledged, counts) = (ended.acknowledged, &ended.counts);
        // The push in which a worker was killed may have reached some shards.
        let is_exact = |count: &u32| (acknowledged..=acknowledged + ended.broken).contains(count);
        assert!(counts.iter().all(is_exact), "{acknowledged} pushes: {counts:?}");
        assert!(ended.broken > 0 || acknowledged == 2 * PUSHES, "{acknowledged} pushes");
        let seconds = ended.longest.as_secs_f64();
        eprintln!("{name}, round {round}: {acknowledged} pushes, the longest took {seconds:.2} s");
    }
}

type Fault = fn(&mut CountedJob, usize);

#[test]
fn a_killed_server() {
    rounds("server", &Network::Loopback, (3, 1), |job, round| {
        job.kill_server(round % 3);
        job.add_server(Place::Near);
    });
}

#[test]
fn two_servers_killed_at_once() {
    rounds("two", &Network::Loopback, (4, 2), |job, round| {
        job.kill_servers([round % 4, (round + 1 + round / 4 % 3) % 4]);
        job.add_server(Place::Near);
    });
}

#[test]
fn a_killed_coordinator() {
    rounds("coordinator", &Network::Loopback, (3, 1), |job, round| {
        job.kill_coordinator();
        // Some pushes are made without a coordinator.
        job.wait_for_pushes(150 + 37 * (round as u32 % 15));
        job.restart_coordinator();
    });
}

#[test]
fn a_killed_worker() {
    rounds("worker", &Network::Loopback, (3, 1), |job, round| job.kill_worker(round % 2));
}

#[test]
fn a_server_cut_off() {
    let Some(network) = Network::of_two_hosts() else { return };
    rounds("cut", &network, (3, 1), |job, _| {
        job.cut(CUT);
    });
}

#[test]
fn the_only_copies_on_a_server_that_stops_for_a_while() {
    rounds("stopped", &Network::Loopback, (2, 0), |job, round| {
        job.stop_server(round % 2, SILENCE + SILENCE / 2);
    });
}

#[test]
#[ignore = "a process that other tests start"]
fn counter() {
    counter::run();
}
