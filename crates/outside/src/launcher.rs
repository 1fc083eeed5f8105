//! Law of the environment variables of launchers.

use std::collections::HashMap;

use thinwire_job::{Overrides, find, token};

/// Checks that any lines `NAME=VALUE` are either read as the place of a rank within its world, read as no
/// place, or refused with an error.
pub fn launcher(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let variables: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).collect();
    let read = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let coordinator = read("--coordinator");
    for given in [Overrides::default(), Overrides { coordinator, ..Overrides::default() }] {
        let Ok(Some(place)) = find(&given, &read) else { continue };
        assert!(place.rank < place.world, "{place:?}");
        let _ = token(&given, &place.coordinator, &read);
    }
}
