//! News of a process that was started by hand in an elastic job. Launchers tell of their own processes.

use std::time::Duration;

use thinwire_wire::World;

use crate::launch::is_launched;
use crate::output::say;

/// Says that the process waits for an epoch.
pub fn waiting(coordinator: &str) {
    tell(&format!("waiting for the next epoch of the job at {coordinator}"));
}

/// Says why no epoch begins, and for how long the process waits in all.
pub fn delayed(reason: &str, patience: Duration) {
    tell(&format!("waiting for up to {:.0} s: {reason}", patience.as_secs_f64().ceil()));
}

/// Says that the process has the state of an epoch, and trains in it.
pub fn joined((epoch, world): (u32, World), done: u64) {
    let (rank, ranks) = (world.rank().0, world.size());
    tell(&format!("joined epoch {epoch} after step {done}, as rank {rank} of {ranks}"));
}

/// Says that the process has done the last step, and others may not have.
pub fn done(step: u64) {
    tell(&format!("all {step} steps are done here: waiting for the others"));
}

/// Says that the process has left, and after which step if it has trained.
pub fn left(done: Option<u64>) {
    let after = done.map_or(String::new(), |step| format!(" after step {step}"));
    tell(&format!("left the job{after}"));
}

fn tell(line: &str) {
    if !is_launched() {
        say(line);
    }
}
