//! That all ranks believe in the same world, before they exchange addresses.
//!
//! The first rank leaves its own belief in the store, every other compares. Who differs leaves an
//! objection, which those who wait for an address look for: so both sides know within a second,
//! whoever comes first, and whether or not the rank they wait for exists.

use std::time::Duration;

use thinwire_wire::{Rank, World};

use crate::store::Store;
use crate::{Error, Kind};

/// Leaves this rank's belief in the store, or compares it with what is there.
///
/// # Errors
/// [`Kind::WorldMismatch`] with both sizes.
pub fn claim(world: World, store: &dyn Store, epoch: u32) -> Result<(), Error> {
    let mine = format!("{} {}", world.rank().0, world.size());
    match store.set(&first(epoch), mine.as_bytes()) {
        Err(error) if error.kind == Kind::RankTaken => {}
        done => return done,
    }
    let found = store.get(&first(epoch), Duration::ZERO)?;
    compare(world, &found).inspect_err(|_| {
        // Another objection says enough, and nobody may be left to read this one.
        let _ = store.set(&objection(epoch), mine.as_bytes());
    })
}

/// Looks for a rank that believes in another world.
///
/// # Errors
/// [`Kind::WorldMismatch`] with both sizes.
pub fn check(world: World, store: &dyn Store, epoch: u32) -> Result<(), Error> {
    match store.get(&objection(epoch), Duration::ZERO) {
        Ok(found) => compare(world, &found),
        Err(_) => Ok(()),
    }
}

/// What both sides of a disagreement say.
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
    let parsed = text
        .split_once(' ')
        .and_then(|(rank, size)| Some((rank.parse().ok()?, size.parse::<usize>().ok()?)));
    match parsed {
        Some((_, size)) if size == world.size() => Ok(()),
        Some((rank, size)) => Err(mismatch(world, Rank(rank), size)),
        None => {
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
    fn nonsense_is_an_error() {
        let store = Mem::new();
        store.set(&first(0), b"\xffmany").unwrap();
        assert_eq!(claim(world(0, 2), &store, 0).unwrap_err().kind, Kind::Corrupt);
    }
}
