//! Request for a snapshot of the job, and the wait until it has ended.

use std::time::{Duration, Instant};

use thinwire_job::elastic::{JobAddress, ViewsConnection};

use thinwire_link::Deadline;

use crate::configuration::{JobState, SnapshotStage, ViewRequest};
use crate::error::{Error, Kind};

/// Takes a snapshot of a job and returns the name of its folder. The snapshot contains every push that was
/// acknowledged before the call. Training continues meanwhile, and the caller need not be a member of the
/// job.
///
/// # Errors
/// [`Kind::Refused`] if the job has no servers or a snapshot is under way, [`Kind::Snapshot`] if the snapshot
/// failed, [`Kind::Timeout`] if it has not ended within `timeout`.
pub fn take_snapshot(job_address: &JobAddress, timeout: Duration) -> Result<String, Error> {
    let (deadline, connecting) =
        (Instant::now() + timeout, timeout.min(Deadline::Reply.duration()));
    let mut demand = Demand {
        connection: ViewsConnection::connect(
            &job_address.coordinator,
            &job_address.token,
            job_address.id,
            connecting,
        )?,
        deadline,
        timeout,
    };
    demand.connection.send(&[])?;
    let last = demand.state()?.snapshot;
    if let Some(last) = last.as_ref().filter(|last| last.is_under_way()) {
        let message = format!("snapshot {} is under way", last.number);
        return Err(Error::new(Kind::Refused, message)
            .with_hint("request the snapshot again when the earlier one is done"));
    }
    let number = last.map_or(0, |last| last.number) + 1;
    demand.connection.send(&ViewRequest::Snapshot { number }.to_bytes())?;
    loop {
        let snapshot = demand.state()?.snapshot.filter(|snapshot| snapshot.number >= number);
        let Some(snapshot) = snapshot else { continue };
        if (snapshot.number, snapshot.asker) != (number, job_address.id) {
            let message = format!("snapshot {number} was requested by another process");
            return Err(Error::new(Kind::Refused, message).with_hint("request the snapshot again"));
        }
        match snapshot.stage {
            SnapshotStage::Done(name) => return Ok(name),
            SnapshotStage::Failed(reason) => {
                let message = format!("snapshot {number} failed: {reason}");
                let hint = "training continues: fix the cause, and request another snapshot";
                return Err(Error::new(Kind::Snapshot, message).with_hint(hint));
            }
            _ => {}
        }
    }
}

/// Request under way: connection to the coordinator, and deadline.
struct Demand {
    connection: ViewsConnection,
    deadline: Instant,
    timeout: Duration,
}

impl Demand {
    /// Waits for the next state of the job.
    fn state(&mut self) -> Result<JobState, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.connection.receive(left)? {
            Some(Ok(state)) => JobState::parse(&state),
            Some(Err(text)) => Err(Error::new(Kind::Refused, text)),
            None => {
                let seconds = self.timeout.as_secs_f64();
                Err(Error::new(Kind::Timeout, format!("no snapshot within {seconds:.0} s")))
            }
        }
    }
}
