//! Calls to the coordinator: a connection, and the welcome on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::service::Connection;
use thinwire_link::{self as link, Token};
use thinwire_member::Id;

use crate::elastic::envelope::{Reply, Request};
use crate::elastic::facts::Facts;
use crate::elastic::seat::Seat;
use crate::error::Error;

/// Longest time of one attempt after the first, so that a membership ends soon when it is dropped.
const ATTEMPT: Duration = Duration::from_secs(2);

/// A connection on which this process was welcomed.
#[derive(Debug)]
pub struct Call {
    pub connection: Connection,
    /// Id of the coordinator.
    pub coordinator: Id,
    /// Time within which the coordinator notices that a process is silent.
    pub silence: Duration,
}

/// Everything that is needed to call the coordinator.
#[derive(Debug)]
pub struct Caller {
    pub address: String,
    pub token: Token,
    join: Vec<u8>,
    cancelled: AtomicBool,
}

impl Caller {
    /// Returns a caller for this seat.
    ///
    /// # Errors
    /// If the token is missing or too short beyond this machine.
    pub fn new(seat: &Seat, facts: Facts) -> Result<Caller, Error> {
        let join = Request::Join { id: seat.id, facts }.to_bytes();
        let token = seat.secret()?;
        let cancelled = AtomicBool::new(false);
        Ok(Caller { address: seat.coordinator.clone(), token, join, cancelled })
    }

    /// Ends calls in other threads soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Connects and waits for the welcome.
    ///
    /// # Errors
    /// If the coordinator does not answer in time or has another token, or refuses this process.
    pub fn call(&self, timeout: Duration) -> Result<Call, Error> {
        let deadline = Instant::now() + timeout;
        let mut connection = Connection::connect(&self.address, &self.token, timeout)?;
        // Behind an empty first message, since what strangers send has to be short.
        connection.send(&self.join)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(message) = connection.receive(left)? else {
                let seconds = timeout.as_secs_f64().ceil();
                let context = format!(
                    "the coordinator at {} gave no welcome within {seconds:.0} s",
                    self.address
                );
                return Err(link::Error::new(link::Kind::Unreachable, context).into());
            };
            match Reply::parse(&message)? {
                Reply::Welcome { coordinator, silence_ms } => {
                    let silence = Duration::from_millis(silence_ms.max(1).into());
                    return Ok(Call { connection, coordinator, silence });
                }
                Reply::Refused(reason) => {
                    let reason: String =
                        reason.chars().filter(|letter| !letter.is_control()).collect();
                    return Err(Error::refused(reason));
                }
                _ => {}
            }
        }
    }

    /// Calls again and again in a thread of its own, until `answer` has got a connection or a refusal.
    pub fn call_until_answered(
        self: &Arc<Caller>,
        answer: impl FnOnce(Result<Call, Error>) + Send + 'static,
    ) {
        let caller = Arc::clone(self);
        let call = move || {
            while !caller.cancelled.load(Ordering::Relaxed) {
                match caller.call(ATTEMPT) {
                    Err(error) if is_absence(&error) => {}
                    answered => return answer(answered),
                }
            }
        };
        // Without a thread the coordinator stays away, which is told where somebody waits for it.
        let _ = thread::Builder::new().name("thinwire connector".to_owned()).spawn(call);
    }
}

/// Whether the coordinator may still come back.
fn is_absence(error: &Error) -> bool {
    use link::Kind::{Io, Timeout, Unreachable};
    error.link().is_some_and(|error| matches!(error.kind, Io | Timeout | Unreachable))
}
