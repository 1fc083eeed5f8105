//! News of a process that was started by hand in an elastic job. Launchers tell of their own processes.

use std::time::Duration;

use thinwire_job::elastic::Membership;
use thinwire_member::Id;
use thinwire_wire::World;

use crate::launch::is_launched;
use crate::output::say;
use crate::patience::Patience;

/// Time after which a process that waits says why.
pub const EXPLAINED_AFTER: Duration = Duration::from_secs(5);

/// Says which coordinator the process looks for, and that it does not answer, if it has not until the result is
/// dropped.
#[must_use]
pub fn joining(coordinator: &str) -> Patience {
    tell(&format!("joining the elastic job at {coordinator}"));
    let line = format!("no answer yet from {coordinator}: still trying");
    Patience::new(EXPLAINED_AFTER, move || tell(&line))
}

/// Says that nothing continues without the coordinator.
pub fn away() {
    tell("waiting for the coordinator, which does not answer: no epoch begins without it");
}

/// Says that the training has ended, in a rank that does not print its result.
pub fn over(rank: u32) {
    tell(&format!("the training has ended; rank 0 prints its result, this is rank {rank}"));
}

/// Says why this process is in no epoch.
pub fn obstacle(reason: &str) {
    tell(&format!("waiting: {reason}"));
}

/// Says that the process waits for an epoch, and under which name others know it.
pub fn waiting(coordinator: &str, id: Id) {
    tell(&format!("process {id} waits for the next epoch of the job at {coordinator}"));
}

/// Says why no epoch begins, and for how long the process waits in all.
pub fn delayed(reason: &str, patience: Duration) {
    tell(&format!("waiting for up to {:.0} s: {reason}", patience.as_secs_f64().ceil()));
}

/// Says that the process has the state of an epoch, and trains in it.
pub fn joined(epoch: u32, world: World, done: u64) {
    let (rank, ranks) = (world.rank().0, world.size());
    tell(&format!("joined epoch {epoch} after step {done}, as rank {rank} of {ranks}"));
}

/// Says that the process has done the last step, and others may not have.
pub fn done(step: u64) {
    tell(&format!("all {step} steps are done here: waiting for the others"));
}

/// Says that the process has left, and after which step if it has trained; or that the job is over.
pub fn left(done: Option<u64>, membership: &Membership) {
    tell(&match (done, membership.is_over()) {
        (None, true) => "the job is over, and did not need this process".to_owned(),
        (Some(step), true) => format!("the job is over; this process took part up to step {step}"),
        (Some(step), false) => format!("left the job after step {step}"),
        (None, false) => "left the job".to_owned(),
    });
}

fn tell(line: &str) {
    if !is_launched() {
        say(line);
    }
}
