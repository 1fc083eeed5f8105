//! Meetings that this process has joined, to refuse a second one in the same place.
//!
//! A rank joins once. A split or a synchroniser of a group keeps the group's meeting, and with it the port of
//! rank 0, after the group itself is gone.

use std::sync::{Arc, Mutex, Weak};

use thinwire_job::{Meeting, Place};

use crate::error::Failure;

/// One meeting of this process.
struct Joined {
    place: Place,
    meeting: Weak<Meeting>,
    process: u32,
}

// Process-global, as a rank is.
static JOINED: Mutex<Vec<Joined>> = Mutex::new(Vec::new());

/// Refuses a place that this process has already, by a group, a split or a synchroniser.
pub(crate) fn check(place: &Place) -> Result<(), Failure> {
    let mut joined = JOINED.lock().expect("no holder panics");
    joined.retain(|joined| joined.meeting.strong_count() > 0);
    let same = |joined: &&Joined| {
        let (mine, old) = (place, &joined.place);
        // A fork has no part in the meetings of its parent.
        joined.process == std::process::id()
            && (mine.rank, mine.world, &mine.coordinator) == (old.rank, old.world, &old.coordinator)
    };
    let Some(Joined { place: Place { rank, world, coordinator, .. }, .. }) =
        joined.iter().find(same).filter(|_| place.world > 1)
    else {
        return Ok(());
    };
    Err(Failure::Invalid(format!(
        "this process has joined already, as rank {rank} of {world} at {coordinator}, and that group or \
         something made of it, a split, a hook or a synchronizer, is still there (hint: keep the group, \
         and use it or its split(name): a rank joins once)"
    )))
}

/// Records a meeting.
pub(crate) fn add(place: &Place, meeting: &Arc<Meeting>) {
    let (place, meeting, process) = (place.clone(), Arc::downgrade(meeting), std::process::id());
    JOINED.lock().expect("no holder panics").push(Joined { place, meeting, process });
}
