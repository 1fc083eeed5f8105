//! Law of the saved state of coordinators.

use std::time::Duration;

use thinwire_member::{CoordinatorMode, Options, Roster, RosterEvent};
use thinwire_wire::checksum;

use crate::draw::Draw;

/// Checks that any bytes are either refused with an error or read as a coordinator's state, which is
/// written back unchanged and from which a coordinator continues.
pub fn roster(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let sealed = draw.u8() & 1 == 0;
    let mut bytes = draw.rest().to_vec();
    if sealed {
        // Random bytes never have the right magic, version and checksum.
        bytes.splice(..bytes.len().min(5), *b"TWRO\x02");
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
    }
    let options = Options::new(CoordinatorMode::Saved, 1, 4096);
    match Roster::restore(&bytes, options, Duration::ZERO, Duration::ZERO, Duration::ZERO) {
        Ok(mut roster) => {
            let saved = roster.save();
            let again =
                Roster::restore(&saved, options, Duration::ZERO, Duration::ZERO, Duration::ZERO)
                    .expect("what it saved");
            assert_eq!(again.save(), saved);
            for second in 0..8 {
                roster.on(RosterEvent::Tick, Duration::from_secs(second));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}
