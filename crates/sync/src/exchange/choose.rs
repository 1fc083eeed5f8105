//! The exchange that a codec asks for.

use thinwire_codec::{Choice, Rounds};
use thinwire_wire::World;

use crate::exchange::Exchange;
use crate::exchange::alternating::Alternating;
use crate::exchange::bytes::Bytes;
use crate::exchange::intsgd::Integers;
use crate::exchange::powersgd::LowRank;
use crate::exchange::route::Route;

/// Returns the exchange of a bucket by a codec.
pub(crate) fn exchange(choice: &Choice, route: &Route<'_>) -> Box<dyn Exchange> {
    match choice {
        Choice::Bytes(codec) => Box::new(Bytes::new(codec, route)),
        Choice::Integers(codec) => Box::new(Integers::new(*codec, route)),
        Choice::LowRank(codec) => match codec.rounds() {
            Rounds::Two => Box::new(LowRank::new(*codec, route)),
            Rounds::One => Box::new(Alternating::new(*codec, route)),
        },
    }
}

/// Returns whether an exchange by a codec leaves a residual.
pub(crate) fn leaves_residual(choice: &Choice) -> bool {
    match choice {
        Choice::Bytes(codec) => codec.needs_feedback(),
        Choice::LowRank(_) => true,
        Choice::Integers(_) => false,
    }
}

/// Returns whether an exchange by a codec keeps something from step to step: a residual, factors, scales.
pub(crate) fn keeps(choice: &Choice) -> bool {
    leaves_residual(choice) || matches!(choice, Choice::Integers(_))
}

/// Refuses integers of so many ranks that their sum might overflow.
pub(crate) fn check_world(choice: &Choice, world: World) -> Result<(), String> {
    match choice {
        Choice::Integers(codec) if codec.limit(world.size()).is_none() => {
            let (found, most) = (world.size(), codec.ranks_max());
            Err(format!("{codec} adds up integers of at most {most} ranks, found {found}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_whose_sums_might_overflow_is_refused() {
        let choice = Choice::parse("intsgd").unwrap();
        assert!(check_world(&choice, World::new(0, 127).unwrap()).is_ok());
        let refusal = check_world(&choice, World::new(0, 128).unwrap()).unwrap_err();
        assert_eq!(refusal, "intsgd adds up integers of at most 127 ranks, found 128");
    }
}
