//! What is divided among the ranks that share a parameter's work: ZeRO's stages.

use thinwire_program::Sharding;

/// How much may differ in what is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Division {
    /// All parameters are divided alike.
    Alike(Sharding),
    /// Each parameter as is best for it.
    Each,
}

impl Division {
    /// The sharding whose costs are worked out first; others are changes of it.
    pub fn usual(self) -> Sharding {
        match self {
            Division::Alike(sharding) => sharding,
            Division::Each => Sharding::Optimizer,
        }
    }
}
