//! Orders of feature rows: which rows a cache of any size should hold.
//!
//! A cache that holds a prefix of an [`Order`] needs no table. The orders differ in what they know:
//!
//! | order | from |
//! |---|---|
//! | [`Order::by_degree`] | PaGraph (Lin et al., SoCC 2020): how many vertices may draw the row |
//! | [`Counts`] | GNNLab (Yang et al., EuroSys 2022): batches that used the row in passes sampled in advance |
//! | [`inclusion`] | SALIENT++ (Kaler et al., MLSys 2023): probability that a batch uses the row |
//! | [`blend`] | counts and probabilities together |
//!
//! [`Order::automatic`] samples passes and blends; [`Forecast`] tells the hit rate for every size.

mod counts;
mod forecast;
mod inclusion;
mod rows;
mod survey;

pub use counts::{Counts, blend};
pub use forecast::{Forecast, rows_within};
pub use inclusion::inclusion;
pub use rows::Order;
pub use survey::{PASSES, Survey, survey};
