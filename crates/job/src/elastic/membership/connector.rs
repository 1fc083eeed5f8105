//! Connections to the coordinator, and its welcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_link::endpoint::Connection;
use thinwire_link::{self as link, Deadline, Token};
use thinwire_member::Id;

use crate::elastic::envelope::{Reply, Request};
use crate::elastic::etcd::{self, Directory};
use crate::elastic::job_address::JobAddress;
use crate::elastic::job_spec::JobSpec;
use crate::elastic::store::Store;
use crate::error::{Error, Kind};

/// Time limit of the first attempt at an address from a store; doubled for each further attempt.
const ATTEMPT_MIN: Duration = Duration::from_millis(300);
/// Pause after a malformed answer of a store.
const PAUSE: Duration = Duration::from_millis(500);

/// A connection on which this process was welcomed.
#[derive(Debug)]
pub struct Call {
    pub connection: Connection,
    /// Id of the coordinator.
    pub coordinator: Id,
    /// Heartbeat timeout: time after which the coordinator notices that a process is silent.
    pub silence: Duration,
}

/// Everything that is needed to connect to the coordinator.
#[derive(Debug)]
pub struct Caller {
    place: Place,
    /// Address to which this process connected last.
    address: Mutex<String>,
    pub token: Token,
    join: Vec<u8>,
    cancelled: AtomicBool,
}

/// The coordinator's address, or the store that has it.
#[derive(Debug)]
enum Place {
    /// Address of the coordinator, as host:port.
    Address(String),
    /// Store that has the coordinator's address.
    Store(Store),
}

impl Caller {
    /// Returns a caller for the job at this address.
    ///
    /// # Errors
    /// If the token is missing or too short for a job beyond this machine, or the coordinator's address is
    /// malformed.
    pub fn new(job_address: &JobAddress, spec: JobSpec) -> Result<Caller, Error> {
        let join = Request::Join { id: job_address.id, spec }.to_bytes();
        let token = job_address.secret()?;
        let place = match Store::is_meant(&job_address.coordinator) {
            true => Place::Store(job_address.coordinator.parse()?),
            false => Place::Address(job_address.coordinator.clone()),
        };
        let (address, cancelled) = (Mutex::default(), AtomicBool::new(false));
        Ok(Caller { place, address, token, join, cancelled })
    }

    /// Returns the address to which this process connected last, as host:port.
    pub fn address(&self) -> String {
        self.address.lock().expect("no holder panics").clone()
    }

    /// Checks in a separate thread whether another process coordinates the job now, and calls `moved` if so.
    /// Does nothing if the coordinator's address is fixed.
    pub fn look(self: &Arc<Caller>, moved: impl FnOnce() + Send + 'static) {
        let Place::Store(store) = &self.place else { return };
        let (mut directory, caller) = (Directory::new(store), Arc::clone(self));
        let look = move || {
            let leader = directory.leader().ok().flatten();
            let found = leader.and_then(|leader| leader.address);
            if found.is_some_and(|found| found != caller.address()) {
                moved();
            }
        };
        // Without a thread, the next look may succeed.
        let _ = thread::Builder::new().name("thinwire look".to_owned()).spawn(look);
    }

    /// Makes calls of this object in other threads end soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Connects and waits for the welcome.
    ///
    /// # Errors
    /// If the coordinator does not answer in time or has another token, or refuses this process.
    pub fn call(&self, timeout: Duration) -> Result<Call, Error> {
        let deadline = Instant::now() + timeout;
        let (address, mut connection) = self.connect(deadline)?;
        self.address.lock().expect("no holder panics").clone_from(&address);
        // Behind an empty first message, since what strangers send has to be short.
        connection.send(&self.join)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(message) = connection.receive(left)? else {
                let seconds = timeout.as_secs_f64().ceil();
                let context =
                    format!("the coordinator at {address} gave no welcome within {seconds:.0} s");
                return Err(link::Error::new(link::Kind::Unreachable, context).into());
            };
            match Reply::parse(&message)? {
                Reply::Welcome { coordinator, silence_ms } => {
                    // With a time of zero, a coordinator would count as silent at once.
                    let silence = Duration::from_millis(silence_ms.max(1).into());
                    return Ok(Call { connection, coordinator, silence });
                }
                Reply::Refused(reason) => {
                    // The reason becomes part of a line on the terminal, whoever has sent it.
                    let reason: String =
                        reason.chars().filter(|letter| !letter.is_control()).collect();
                    return Err(Error::refused(reason));
                }
                // The other replies are for processes that were welcomed.
                _ => {}
            }
        }
    }

    /// Connects to the coordinator, at its address at that time.
    fn connect(&self, deadline: Instant) -> Result<(String, Connection), Error> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let store = match &self.place {
            Place::Address(address) => {
                let connection = Connection::connect(address, &self.token, left())?;
                return Ok((address.clone(), connection));
            }
            Place::Store(store) => store,
        };
        let mut attempt = ATTEMPT_MIN;
        loop {
            let address = etcd::address(store, left())?;
            match Connection::connect(&address, &self.token, left().min(attempt)) {
                Ok(connection) => return Ok((address, connection)),
                // The one at this address may have gone meanwhile, or is far away.
                Err(error) if is_declined(&error) && !left().is_zero() => attempt *= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tries to connect in a separate thread until it has a connection or a refusal, and passes it to
    /// `answer`.
    pub fn call_until_answered(
        self: &Arc<Caller>,
        answer: impl FnOnce(Result<Call, Error>) + Send + 'static,
    ) {
        let caller = Arc::clone(self);
        let call = move || {
            while !caller.cancelled.load(Ordering::Relaxed) {
                match caller.call(Deadline::Dial.duration()) {
                    Err(error) if is_decline(&error) => {}
                    // A store may answer strangely for a while, for instance through a proxy.
                    Err(error) if error.kind == Kind::Invalid => thread::sleep(PAUSE),
                    answered => return answer(answered),
                }
            }
        };
        // Without a thread the coordinator stays away, which is told where somebody waits for it.
        let _ = thread::Builder::new().name("thinwire connector".to_owned()).spawn(call);
    }
}

/// Returns whether the coordinator may still come back.
fn is_decline(error: &Error) -> bool {
    error.link().is_some_and(is_declined)
}

fn is_declined(error: &link::Error) -> bool {
    use link::Kind::{Io, Timeout, Unreachable};
    matches!(error.kind, Io | Timeout | Unreachable)
}
