//! Messages of a process that was started by hand in an elastic job. For processes that a launcher has
//! started, the launcher prints such messages.

use std::time::Duration;

use anyhow::Result;
use thinwire_job::elastic::JobAddress;

use crate::launch::is_launched;
use crate::output::say;
use crate::patience::Patience;

/// Time after which a waiting process prints the reason.
pub const EXPLAINED_AFTER: Duration = Duration::from_secs(5);

/// Joins a job with `join`, and prints the coordinator's address and the name of this process.
///
/// # Errors
/// Errors returned by `join`.
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

/// Prints that the training has ended, on a rank that does not print its result.
pub fn over(rank: u32) {
    tell(&format!("the training has ended; rank 0 prints its result, this is rank {rank}"));
}

/// Prints the reason why no epoch begins, and the longest wait of the process.
pub fn delayed(reason: &str, patience: Duration) {
    tell(&format!("waiting for up to {:.0} s: {reason}", patience.as_secs_f64().ceil()));
}

/// Prints a line about this process, unless its launcher prints such lines.
pub fn tell(line: &str) {
    if !is_launched() {
        say(line);
    }
}
