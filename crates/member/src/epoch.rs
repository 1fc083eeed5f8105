//! Processes, epochs, and the states of processes.

use std::fmt;

use serde::{Deserialize, Serialize};
use thinwire_wire::{WORLD_SIZE_MAX, World};

use crate::Corrupt;

/// Largest number of an epoch; larger ones are refused, so that adding to a number never overflows.
pub const NUMBER_MAX: u32 = 1 << 31;

/// Largest number of bytes of an epoch.
pub(crate) const EPOCH_BYTES_MAX: usize = 48 + 10 * WORLD_SIZE_MAX as usize;

/// Name of a process, drawn at random when it starts and never used again.
///
/// Ranks are positions in an epoch; a process keeps its id from epoch to epoch. The highest bit distinguishes
/// servers from workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id(pub u64);

impl Id {
    /// Bit that is set in the ids of servers, and not in the ids of workers.
    pub const SERVER_BIT: u64 = 1 << 63;

    /// Returns whether the process keeps parameters for others instead of training: its highest bit is set.
    pub const fn is_server(self) -> bool {
        self.0 & Id::SERVER_BIT != 0
    }
}

impl fmt::Display for Id {
    /// Writes sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Training state of a process: parameters, moments and position in the data after a step.
///
/// States are ordered by age. A step of an epoch needs every member, so a state of a later epoch contains all
/// steps that any survivor of the earlier epochs may have applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct State {
    /// Epoch in which the process got or last changed this state.
    pub epoch: u32,
    /// Last step that was applied.
    pub done: u64,
}

/// Commitment of a process to obey only one coordinator, and no proposal with a smaller number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Promise {
    /// Smallest number that the next epoch may have.
    pub number: u32,
    /// Coordinator that the process obeys.
    pub to: Id,
}

impl Promise {
    /// Promise of a process that has had no coordinator yet.
    pub const NONE: Promise = Promise { number: 0, to: Id(0) };
}

/// Version of the group: the processes that train together, and the state from which they start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Number of the epoch, from 1; it grows whenever membership changes.
    pub number: u32,
    /// Coordinator that proposed the epoch.
    pub coordinator: Id,
    /// Members in rank order. State sources come first; of the others, members that joined earlier come
    /// first.
    pub members: Vec<Id>,
    /// Number of members that have the newest state. If it is 0, all members load the last checkpoint.
    pub state_sources: u32,
    /// Last step that the state sources have applied; 0 without state sources.
    pub done: u64,
    /// Number of ranks that the job should have.
    pub target: u32,
}

impl Epoch {
    /// Returns the index of a process among the members.
    pub fn place(&self, id: Id) -> Option<usize> {
        self.members.iter().position(|member| *member == id)
    }

    /// Returns whether a process is a member.
    pub fn contains(&self, id: Id) -> bool {
        self.members.contains(&id)
    }

    /// Returns whether a member already has the newest state when the epoch starts.
    pub fn has_state(&self, id: Id) -> bool {
        self.place(id).is_some_and(|place| place < self.state_sources as usize)
    }

    /// Returns a member's rank and the number of ranks.
    pub fn world(&self, id: Id) -> Option<World> {
        World::new(self.place(id)? as u32, self.members.len() as u32).ok()
    }

    /// Checks an epoch that was read.
    ///
    /// # Errors
    /// If no coordinator can propose such an epoch.
    pub(crate) fn check(&self) -> Result<(), Corrupt> {
        check_number(self.number)?;
        check_members(&self.members)?;
        if self.is_sound() { Ok(()) } else { Err(Corrupt::Epoch { number: self.number }) }
    }

    /// Returns whether the numbers are possible for an epoch and no member is repeated.
    pub(crate) fn is_sound(&self) -> bool {
        let mut sorted = self.members.clone();
        sorted.sort_unstable();
        sorted.dedup();
        (1..=NUMBER_MAX).contains(&self.number)
            && (1..=WORLD_SIZE_MAX as usize).contains(&self.members.len())
            && sorted.len() == self.members.len()
            && self.state_sources as usize <= self.members.len()
            && (self.state_sources > 0 || self.done == 0)
    }
}

/// Checks the number of an epoch.
pub(crate) fn check_number(found: u32) -> Result<(), Corrupt> {
    if found > NUMBER_MAX { Err(Corrupt::Number { found }) } else { Ok(()) }
}

/// Checks that there are at most as many processes as a world has ranks.
pub(crate) fn check_members(ids: &[Id]) -> Result<(), Corrupt> {
    match ids.len() {
        found if found > WORLD_SIZE_MAX as usize => Err(Corrupt::Members { found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_rank_and_holders_come_first() {
        let epoch = Epoch {
            number: 3,
            coordinator: Id(9),
            members: vec![Id(5), Id(2), Id(7)],
            state_sources: 2,
            done: 40,
            target: 4,
        };
        assert_eq!(epoch.world(Id(2)), World::new(1, 3).ok());
        assert_eq!(epoch.world(Id(9)), None);
        assert!(epoch.has_state(Id(2)) && !epoch.has_state(Id(7)) && !epoch.has_state(Id(9)));
        assert!(epoch.is_sound());
        let twice = Epoch { members: vec![Id(5), Id(5)], ..epoch };
        assert!(!twice.is_sound());
    }

    #[test]
    fn the_highest_bit_tells_servers_from_workers() {
        for (id, is_server) in
            [(0, false), (u64::MAX >> 1, false), (1 << 63, true), (u64::MAX, true)]
        {
            assert_eq!(Id(id).is_server(), is_server, "{}", Id(id));
        }
    }

    #[test]
    fn a_later_epoch_outweighs_more_steps_of_an_earlier_one() {
        assert!(State { epoch: 3, done: 7 } > State { epoch: 2, done: 8 });
        assert!(State { epoch: 3, done: 8 } > State { epoch: 3, done: 7 });
    }
}
