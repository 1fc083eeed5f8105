//! A rank that ends before it meets the others: it tells them, so that they need not wait for it.
//!
//! The others learn of it where they wait for the rank's address, within a second. Where rank 0 is
//! the store's host and does not come itself, it opens the store for five seconds: who comes later
//! finds nobody.

use std::thread;
use std::time::Duration;

use thinwire_link::store::tcp::Client;
use thinwire_link::tcp;

use crate::error::Error;
use crate::identity::Identity;
use crate::meeting::{LINGER, PrefixedStore, prefix};
use crate::place::{Host, Place};
use crate::rendezvous::{host, secret};

/// Time that a rank that does not come looks for the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells the others that this rank will not come, and why. A launcher that hosts the store watches
/// its ranks itself, and is not told.
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
