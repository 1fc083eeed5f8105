//! The inside of a stage: the strategy of every operator on the stage's mesh.

mod builder;
mod formulation;
mod frontier;
mod lagrange;
mod order;
mod outline;
mod pricing;
mod problem;

pub use formulation::{Block, Formulation, TransportOptions, Variable};
pub use frontier::{Eliminated, eliminate, solve};
pub(crate) use lagrange::DEAR;
pub use lagrange::{Lack, Rates, Within, within};
pub use order::order;
pub use outline::Outline;
pub use pricing::{Pricing, Weights, Wire};
pub use problem::{Edge, Price, Problem};
