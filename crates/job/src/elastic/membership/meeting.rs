//! The rendezvous of an epoch: its members find each other through the coordinator's store.
//!
//! It runs in a separate thread, so that the caller can abandon it at once if the epoch ends before all
//! members are connected. The thread then ends within seconds.

use std::sync::Arc;
use std::time::Duration;

use thinwire_link::store::tcp::Client;
use thinwire_link::{Error, Link, tcp};
use thinwire_member::{Epoch, Id, Options};
use thinwire_wire::{Rank, World};

use super::connector::Caller;
use crate::address::seen_by_others;
use crate::elastic::role::Role;
use crate::meeting::{PrefixedStore, Settings};

/// Shortest time after which a member that has not appeared counts as lost.
const ABSENCE_MIN: Duration = Duration::from_secs(5);
/// Longest attempt to connect to a member when only its reachability is checked.
const PROBE: Duration = Duration::from_secs(1);
/// Shortest heartbeat timeout of a link.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);

/// Settings with which the members of this job meet.
#[derive(Clone, Debug)]
pub struct Meeting {
    caller: Arc<Caller>,
    role: Role,
    options: tcp::Options,
}

impl Meeting {
    /// Returns the settings with which members of a job with these `options` meet.
    pub fn new(
        settings: &Settings,
        options: &Options,
        caller: &Arc<Caller>,
        role: Role,
    ) -> Meeting {
        let silence = options.silence;
        // The job's silence counts, which its coordinator decides, and not that of this rank's settings.
        let heartbeat_timeout = options.link_silence().max(HEARTBEAT_MIN);
        let options = tcp::Options {
            timeout: settings.timeout.min(ABSENCE_MIN.max(2 * silence)),
            heartbeat_timeout: Some(heartbeat_timeout),
            ..settings.link_options(&caller.token)
        };
        Meeting { caller: Arc::clone(caller), role, options }
    }

    /// Meets the members of epoch `number`, unless it is cancelled.
    ///
    /// # Errors
    /// If a member does not appear in time, or the store does not answer.
    pub fn meet(
        mut self,
        number: u32,
        world: World,
        cancel: tcp::Cancel,
        unreachable: tcp::Unreachable,
    ) -> Result<Link, Error> {
        (self.options.epoch, self.options.cancel) = (number, Some(cancel));
        self.options.unreachable = Some(unreachable);
        let coordinator = self.caller.address();
        let client = Client::connect(&coordinator, &self.options.token, self.options.timeout)?;
        let towards = tcp::address_towards(client.address())?;
        self.options.bind = seen_by_others(&coordinator, towards);
        tcp::connect(world, &PrefixedStore::new(&client, self.role.prefix(number)), &self.options)
    }

    /// Returns a member of an epoch to which this process cannot connect, if there is one. The process
    /// itself is not in the epoch.
    pub fn unreachable(&self, epoch: &Epoch) -> Option<Id> {
        let (token, address) = (&self.options.token, self.caller.address());
        let client = Client::connect(&address, token, PROBE).ok()?;
        let prefix = PrefixedStore::new(&client, self.role.prefix(epoch.number));
        let ranks = (0..).map(Rank).take(epoch.members.len());
        let missed = tcp::unreachable(ranks, &prefix, epoch.number, PROBE)?;
        Some(epoch.members[missed.index()])
    }
}
