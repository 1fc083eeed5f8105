//! Inside a stage: how every operator is spread over the stage's mesh.

mod formulation;
mod frontier;
mod lagrange;
mod order;
mod pareto;
mod problem;

pub use formulation::{Block, Formulation, Pricing, Variable, Weights, Wire};
pub use frontier::{Eliminated, eliminate, solve};
pub use lagrange::{Lack, Within, within};
pub use pareto::{Point, pareto};
pub use problem::{Edge, Price, Problem};
