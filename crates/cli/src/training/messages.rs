//! News of a process that was started by hand in an elastic job. Launchers tell of their own processes.

use std::time::Duration;

use anyhow::Result;
use thinwire_job::elastic::JobAddress;

use crate::launch::is_launched;
use crate::output::say;
use crate::patience::Patience;

/// Time after which a process that waits says why.
pub const EXPLAINED_AFTER: Duration = Duration::from_secs(5);

/// Joins a job by `join`, and says which coordinator the process looks for, and under which name others know it.
///
/// # Errors
/// Errors of `join`.
pub fn join<T>(
    JobAddress { coordinator, id, .. }: &JobAddress,
    join: impl FnOnce() -> Result<T, thinwire_job::Error>,
) -> Result<T> {
    tell(&format!("joining the elastic job at {coordinator}"));
    let line = format!("no answer yet from {coordinator}: still trying");
    let joining = Patience::new(EXPLAINED_AFTER, move || tell(&line));
    let joined = join()?;
    drop(joining);
    tell(&format!("process {id} waits for the next epoch of the job at {coordinator}"));
    Ok(joined)
}

/// Says that the training has ended, in a rank that does not print its result.
pub fn over(rank: u32) {
    tell(&format!("the training has ended; rank 0 prints its result, this is rank {rank}"));
}

/// Says why no epoch begins, and for how long the process waits in all.
pub fn delayed(reason: &str, patience: Duration) {
    tell(&format!("waiting for up to {:.0} s: {reason}", patience.as_secs_f64().ceil()));
}

/// Says a line about this process, unless its launcher does.
pub fn tell(line: &str) {
    if !is_launched() {
        say(line);
    }
}
