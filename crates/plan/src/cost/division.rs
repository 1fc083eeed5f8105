//! Division of parameters among the ranks that share their work: the stages of ZeRO.

use thinwire_program::Sharding;

/// Freedom of sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Division {
    /// All parameters are sharded alike.
    Alike(Sharding),
    /// Each parameter has the sharding that is best for it.
    Each,
}

impl Division {
    /// Returns the sharding that is priced first; others are changes of it.
    pub fn usual(self) -> Sharding {
        match self {
            Division::Alike(sharding) => sharding,
            Division::Each => Sharding::Optimizer,
        }
    }
}
