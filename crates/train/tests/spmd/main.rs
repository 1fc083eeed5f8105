//! Under every plan a step is what it is on one rank.

mod graphs;
mod laws;
mod plans;
mod ranks;
