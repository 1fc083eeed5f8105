//! Pairs: who averages with whom, and the exchange of two ranks.

use std::sync::mpsc::Receiver;

use thinwire_collective::{Address, Group, all_reduce};
use thinwire_schedule::Algorithm;
use thinwire_wire::random::Key;
use thinwire_wire::{Rank, World};

use super::timetable::Round;
use crate::channel::Channel;
use crate::worker::sum;
use crate::{Error, Outcome};

/// The tensor number of random draws, so that nothing else draws the same.
const DRAW: u32 = u32::from_be_bytes(*b"pair");

/// Returns the rank with which this one averages in a round: all ranks draw the same perfect matching, each
/// matching equally likely, and so agree without a message. With an odd number of ranks one has no partner.
///
/// Law: the partner of a rank's partner is the rank itself.
pub fn partner(world: World, seed: u64, round: u64) -> Option<Rank> {
    let key = Key { seed, step: round, tensor: DRAW };
    let mut order: Vec<Rank> = world.ranks().collect();
    for last in (1..order.len()).rev() {
        order.swap(last, key.below(last as u64, last as u32 + 1) as usize);
    }
    let place = order.iter().position(|rank| *rank == world.rank())?;
    order.get(place ^ 1).copied()
}

/// This rank's parameters and the sum of both partners', once it has arrived.
#[derive(Debug)]
pub(super) struct Meeting {
    mine: Vec<f32>,
    sum: Receiver<Result<Vec<f32>, Error>>,
}

impl Meeting {
    /// Sends the parameters of this rank to its partner in a round; none if it has none.
    pub(super) fn begin(
        channel: &Channel,
        seed: u64,
        round: Round,
        mine: Vec<f32>,
    ) -> Option<Meeting> {
        let world = channel.world();
        let other = partner(world, seed, round.number)?;
        let ranks = channel.pair(world.rank().min(other), world.rank().max(other));
        let program = ranks.sum(Algorithm::TwoShot.into(), mine.len());
        let address = Address::counted(round.number, DRAW, "pair averaging");
        let sum = sum(channel, ranks.world, program, address, mine.clone());
        Some(Meeting { mine, sum })
    }

    /// Waits for the sum, and moves `values` by half of the distance that was between the partners when the round
    /// began. Numbers that are not finite on either of the two move nothing on both.
    pub(super) fn end(self, values: &mut [f32]) -> Result<Outcome, Error> {
        let Meeting { mine, sum } = self;
        let sum = sum.recv().unwrap_or(Err(Error::Stopped))?;
        if !sum.iter().all(|value| value.is_finite()) {
            return Ok(Outcome::Skipped);
        }
        for ((value, mine), sum) in values.iter_mut().zip(mine).zip(sum) {
            let mean = sum * 0.5;
            // Without a step between both partners have the same bits afterwards.
            *value = if *value == mine { mean } else { *value + (mean - mine) };
        }
        Ok(Outcome::Averaged)
    }
}

/// Returns the mean of the values of all ranks that have finite ones; this rank's own if none has.
pub(super) fn mean(channel: &Channel, own: Vec<f32>) -> Result<Vec<f32>, Error> {
    let is_finite = own.iter().all(|value| value.is_finite());
    let mut mine = if is_finite { own.clone() } else { vec![0.0; own.len()] };
    // The last number counts those ranks.
    mine.push(f32::from(u8::from(is_finite)));
    let sum = move |group: &mut Group| {
        all_reduce(group, &mut mine, &thinwire_collective::Options::default()).map(|()| mine)
    };
    let mut values = channel.call(sum)?;
    let count = values.pop().expect("it has a count");
    if count == 0.0 {
        return Ok(own);
    }
    values.iter_mut().for_each(|value| *value /= count);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_partner_of_a_partner_is_the_rank_itself(size in 1_u32..20, seed: u64, round: u64) {
            let of = |rank: Rank| partner(World::new(rank.0, size).unwrap(), seed, round);
            let mut alone = 0;
            for rank in (0..size).map(Rank) {
                match of(rank) {
                    Some(other) => {
                        prop_assert_ne!(other, rank);
                        prop_assert_eq!(of(other), Some(rank));
                    }
                    None => alone += 1,
                }
            }
            prop_assert_eq!(alone, size % 2);
        }
    }

    #[test]
    fn every_other_rank_is_equally_likely() {
        let mut met = [0_u32; 5];
        for round in 0..4000 {
            let other = partner(World::new(2, 5).unwrap(), 7, round);
            met[other.map_or(2, Rank::index)] += 1;
        }
        // 800 of each are expected, with a deviation of 25.
        assert!(met.iter().all(|count| (680..920).contains(count)), "{met:?}");
    }
}
