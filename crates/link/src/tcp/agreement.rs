//! Agreement on the world, before ranks exchange addresses.
//!
//! The first rank writes its world size to the store, and every other rank compares it with its own. A
//! rank whose size differs writes an objection, and so does a rank that cannot come. Ranks that wait
//! for an address check for objections. So all ranks learn of an objection within a second, whichever
//! rank comes first, and even if the awaited rank does not exist.

use std::time::Duration;

use thinwire_wire::{Rank, World};

use crate::store::Store;
use crate::{Error, Kind};

/// The most letters of a reason that are passed on.
const WHY_MAX: usize = 1000;

/// Tells the other ranks that this one will not come, and why. Calls of [`super::connect`] that wait
/// for this rank return this reason as their error.
///
/// # Errors
/// If the store does not answer.
pub fn decline(world: World, store: &dyn Store, epoch: u32, why: &str) -> Result<(), Error> {
    let why: String = why.chars().take(WHY_MAX).collect();
    let text = format!("{} {} {why}", world.rank().0, world.size());
    match store.set(&objection(epoch), text.as_bytes()) {
        // The objection of another rank ends the meeting as well.
        Err(error) if error.kind == Kind::RankTaken => Ok(()),
        done => done,
    }
}

/// Writes this rank's world size to the store, or compares it with the size that is there.
///
/// # Errors
/// [`Kind::WorldMismatch`] with both sizes; [`Kind::Absent`].
pub fn claim(world: World, store: &dyn Store, epoch: u32) -> Result<(), Error> {
    let mine = format!("{} {}", world.rank().0, world.size());
    match store.set(&first(epoch), mine.as_bytes()) {
        Err(error) if error.kind == Kind::RankTaken => {}
        Err(error) => return Err(error),
        Ok(()) => return check(world, store, epoch),
    }
    let found = store.get(&first(epoch), Duration::ZERO)?;
    compare(world, &found).inspect_err(|_| {
        // Another objection does as well, and maybe no rank is left to read this one.
        let _ = store.set(&objection(epoch), mine.as_bytes());
    })?;
    check(world, store, epoch)
}

/// Checks whether a rank has reported that it has another world size, or will not come.
///
/// # Errors
/// [`Kind::WorldMismatch`] with both sizes; [`Kind::Absent`].
pub fn check(world: World, store: &dyn Store, epoch: u32) -> Result<(), Error> {
    match store.get(&objection(epoch), Duration::ZERO) {
        Ok(found) => compare(world, &found),
        Err(_) => Ok(()),
    }
}

/// Returns the error that both sides of a disagreement report.
pub fn mismatch(world: World, rank: Rank, size: usize) -> Error {
    let (me, mine) = (world.rank(), world.size());
    let context = format!("{me} was started with world {mine}, {rank} with world {size}");
    Error::new(Kind::WorldMismatch, context).with_rank(rank)
}

fn first(epoch: u32) -> String {
    format!("epoch/{epoch}/world")
}

fn objection(epoch: u32) -> String {
    format!("epoch/{epoch}/objection")
}

fn compare(world: World, found: &[u8]) -> Result<(), Error> {
    let text = String::from_utf8_lossy(found);
    let mut words = text.splitn(3, ' ');
    let rank = words.next().and_then(|rank| rank.parse().ok());
    let size = words.next().and_then(|size| size.parse::<usize>().ok());
    match (rank.zip(size), words.next()) {
        (Some((rank, size)), _) if size != world.size() => Err(mismatch(world, Rank(rank), size)),
        (Some(_), None) => Ok(()),
        (Some((rank, _)), Some(why)) => {
            let why: String = why.chars().filter(|letter| !letter.is_control()).collect();
            Err(Error::new(Kind::Absent, why).with_rank(Rank(rank)))
        }
        (None, _) => {
            let text = text.escape_debug();
            let context = format!("the store says '{text}', expected a rank and its world");
            Err(Error::new(Kind::Corrupt, context))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mem::Mem;

    fn world(rank: u32, size: u32) -> World {
        World::new(rank, size).unwrap()
    }

    #[test]
    fn who_differs_is_told_and_tells() {
        let store = Mem::new();
        claim(world(2, 3), &store, 0).unwrap();
        claim(world(1, 3), &store, 0).unwrap();
        check(world(1, 3), &store, 0).unwrap();
        let error = claim(world(0, 2), &store, 0).unwrap_err();
        assert_eq!((error.kind, error.rank), (Kind::WorldMismatch, Some(Rank(2))));
        assert_eq!(error.context, "rank 0 was started with world 2, rank 2 with world 3");
        let error = check(world(1, 3), &store, 0).unwrap_err();
        assert_eq!(error.context, "rank 1 was started with world 3, rank 0 with world 2");
        claim(world(0, 2), &store, 1).unwrap();
    }

    #[test]
    fn who_does_not_come_is_named_with_the_reason_to_who_waits_and_who_comes_later() {
        let store = Mem::new();
        claim(world(0, 3), &store, 0).unwrap();
        decline(world(2, 3), &store, 0, &format!("no\u{1b}[2J\ndata{}", "x".repeat(2000))).unwrap();
        decline(world(1, 3), &store, 0, "nor this one").unwrap();
        for error in [check(world(0, 3), &store, 0), claim(world(1, 3), &store, 0)] {
            let error = error.unwrap_err();
            assert_eq!((error.kind, error.rank), (Kind::Absent, Some(Rank(2))));
            assert!(error.to_string().starts_with("rank 2 does not come: no[2Jdatax"), "{error}");
            assert!(error.context.len() < 1100);
        }
        let error = check(world(0, 2), &store, 0).unwrap_err();
        assert_eq!(error.kind, Kind::WorldMismatch);
        claim(world(0, 3), &store, 1).unwrap();
    }

    #[test]
    fn nonsense_is_an_error() {
        let store = Mem::new();
        store.set(&first(0), b"\xffmany").unwrap();
        assert_eq!(claim(world(0, 2), &store, 0).unwrap_err().kind, Kind::Corrupt);
    }
}
