//! A rank that ends before it is connected to the others tells them, so that they do not wait for it.
//!
//! The others learn of it within a second, while they wait for the rank's address. If rank 0 is the one
//! that ends, and was to host the store, it opens the store for five seconds. Ranks that look for the
//! store later do not find it.

use std::thread;
use std::time::Duration;

use thinwire_link::store::tcp::Client;
use thinwire_link::tcp;

use crate::error::Error;
use crate::identity::Identity;
use crate::meeting::{LINGER, PrefixedStore, prefix};
use crate::place::{Host, Place};
use crate::rendezvous::{host, secret};

/// Time for which a rank that will not come tries to reach the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells the other ranks that this rank will not come, and why. If a launcher hosts the store, does
/// nothing, because the launcher watches its ranks itself.
///
/// # Errors
/// If the store's address is taken or does not answer, or the token is wrong or too short.
pub fn decline(place: &Place, token: &str, why: &str) -> Result<(), Error> {
    let world = place.world()?;
    if world.size() == 1 || place.host == Host::Launcher {
        return Ok(());
    }
    let secret = secret(token, &place.coordinator)?;
    let server = (place.rank == 0).then(|| host(place, &secret)).transpose()?;
    let client = Client::connect(&place.coordinator, &secret, PATIENCE)?;
    Identity::at(&client, place)?;
    tcp::decline(world, &PrefixedStore::new(&client, prefix(0)), 0, why)?;
    if server.is_some() {
        thread::sleep(LINGER);
    }
    Ok(())
}
