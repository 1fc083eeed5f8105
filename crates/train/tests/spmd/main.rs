//! Under every plan a step is what it is on one rank.

mod laws;
mod mixtures;
mod models;
mod plans;
mod ranks;
