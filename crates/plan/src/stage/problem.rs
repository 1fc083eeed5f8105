//! Problem of choosing one option per variable. Planning a stage is reduced to this problem. There are
//! prices of single options and of pairs of options.
//!
//! A variable is a node, whose options are its strategies, or a tensor that several nodes read, whose options
//! are layouts. An edge prices every pair of options of two variables: the conversion of a tensor from one
//! layout to the other, and of its gradient back. The total price is the sum of all prices.

use std::ops::Add;

use super::order;

/// Price in the two scarce resources.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of a device's memory.
    pub bytes: f64,
}

impl Price {
    /// Returns a price of only time.
    pub const fn seconds(seconds: f64) -> Price {
        Price { seconds, bytes: 0.0 }
    }

    /// Returns seconds and bytes as one number, at a price per byte.
    pub fn at(self, seconds_per_byte: f64) -> f64 {
        self.seconds + seconds_per_byte * self.bytes
    }
}

impl Add for Price {
    type Output = Price;

    fn add(self, other: Price) -> Price {
        Price { seconds: self.seconds + other.seconds, bytes: self.bytes + other.bytes }
    }
}

impl std::iter::Sum for Price {
    fn sum<I: Iterator<Item = Price>>(prices: I) -> Price {
        prices.fold(Price::default(), Add::add)
    }
}

/// Prices of all pairs of options of two variables.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The two variables.
    pub ends: [usize; 2],
    /// Prices, ordered by the option of the first variable, then by the option of the second.
    pub prices: Vec<Price>,
}

/// Variables, their options and prices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// Price of each option, for every variable.
    pub options: Vec<Vec<Price>>,
    /// Prices of pairs of options.
    pub edges: Vec<Edge>,
}

impl Problem {
    /// Returns all variables but `keep` in the best order of elimination.
    pub fn order(&self, keep: &[usize]) -> Vec<usize> {
        order(&self.sizes(), self.edges.iter().map(|edge| edge.ends), keep)
    }

    /// Returns the number of options of each variable.
    pub fn sizes(&self) -> Vec<usize> {
        self.options.iter().map(Vec::len).collect()
    }
}
