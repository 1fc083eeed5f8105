//! What is divided among the ranks that share a parameter's work: ZeRO's stages.

/// What the ranks that share a parameter's work divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing.
    None,
    /// The optimiser's state: ZeRO 1.
    Optimizer,
    /// Gradients too: ZeRO 2. They are scattered with every micro-batch.
    Gradients,
    /// Parameters too: ZeRO 3. They are gathered for forward and for backward with every
    /// micro-batch.
    Parameters,
}

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
