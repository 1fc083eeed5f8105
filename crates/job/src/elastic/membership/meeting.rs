//! The meeting of an epoch: its members find each other through the coordinator's store.
//!
//! It runs in a thread of its own, so that it can be given up at once when the epoch ends before all
//! have met; the thread itself then ends within seconds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_link::store::Store;
use thinwire_link::store::tcp::Client;
use thinwire_link::{Error, Kind, Link, tcp};
use thinwire_wire::World;

use super::connector::Caller;
use crate::meeting::Settings;
use crate::part::Part;

/// Shortest time after which a member that has not appeared counts as lost.
const ABSENCE_MIN: Duration = Duration::from_secs(5);
/// Shortest heartbeat timeout of a link.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);

/// Way in which the members of this job meet.
#[derive(Clone, Debug)]
pub struct Meeting {
    address: String,
    options: tcp::Options,
}

impl Meeting {
    /// Returns the way in which members meet whose silence is noticed within `silence`.
    pub fn new(settings: &Settings, silence: Duration, caller: &Caller) -> Meeting {
        let heartbeat_timeout = settings.heartbeat_timeout.min(silence.max(HEARTBEAT_MIN));
        let options = tcp::Options {
            connections: settings.connections,
            encryption: settings.encryption,
            limit: settings.limit,
            timeout: settings.timeout.min(ABSENCE_MIN.max(2 * silence)),
            heartbeat_timeout: Some(heartbeat_timeout),
            ..tcp::Options::new(caller.token.clone())
        };
        Meeting { address: caller.address.clone(), options }
    }

    /// Meets the members of epoch `number`, unless `cancelled` becomes true.
    ///
    /// # Errors
    /// If a member does not appear in time, or the store does not answer.
    pub fn meet(
        mut self,
        number: u32,
        world: World,
        cancelled: &AtomicBool,
    ) -> Result<Link, Error> {
        self.options.epoch = number;
        let client = Client::connect(&self.address, &self.options.token, self.options.timeout)?;
        self.options.bind = tcp::address_towards(client.address())?;
        let store = Cancellable { client, cancelled };
        tcp::connect(world, &Part::new(&store, crate::elastic::part(number)), &self.options)
    }
}

/// A store that answers nothing once the meeting is cancelled.
struct Cancellable<'a> {
    client: Client,
    cancelled: &'a AtomicBool,
}

impl Cancellable<'_> {
    fn check(&self) -> Result<(), Error> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Invalid, "the epoch has ended")),
            false => Ok(()),
        }
    }
}

impl Store for Cancellable<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.client.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        self.check()?;
        self.client.get(key, timeout)
    }
}
