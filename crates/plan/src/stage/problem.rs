//! The choice that planning a stage comes to: one option per variable, priced alone and in pairs.
//!
//! A variable is a node, whose options are its strategies, or a tensor that several nodes read,
//! whose options are layouts. An edge prices every pair of options of two variables: what it takes
//! to bring a tensor from one layout to the other and its gradient back. All prices add up.

use std::ops::{Add, AddAssign};

use super::order::order;

/// What something takes of the two things that are short.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of a device's memory.
    pub bytes: f64,
}

impl Price {
    /// What cannot be.
    pub const NEVER: Price = Price { seconds: f64::INFINITY, bytes: 0.0 };

    /// Time alone.
    pub const fn seconds(seconds: f64) -> Price {
        Price { seconds, bytes: 0.0 }
    }

    /// Both in one number, at this many seconds per byte.
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

impl AddAssign for Price {
    fn add_assign(&mut self, other: Price) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Price {
    fn sum<I: Iterator<Item = Price>>(prices: I) -> Price {
        prices.fold(Price::default(), Add::add)
    }
}

/// The price of every pair of options of two variables.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The two variables.
    pub ends: [usize; 2],
    /// By the option of the first, then by that of the second.
    pub prices: Vec<Price>,
}

/// Variables, their options, and what they cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// For every variable the price of each of its options.
    pub options: Vec<Vec<Price>>,
    /// What pairs of them cost besides.
    pub edges: Vec<Edge>,
}

impl Problem {
    /// All variables but those to keep, in the order in which they are best eliminated.
    pub fn order(&self, keep: &[usize]) -> Vec<usize> {
        order(&self.sizes(), self.edges.iter().map(|edge| edge.ends), keep)
    }

    /// How many options each variable has.
    pub fn sizes(&self) -> Vec<usize> {
        self.options.iter().map(Vec::len).collect()
    }

    /// The price of one option per variable.
    pub fn price(&self, choices: &[usize]) -> Price {
        let alone = self.options.iter().zip(choices).map(|(options, choice)| options[*choice]);
        alone.sum::<Price>() + self.edges.iter().map(|edge| self.of_edge(edge, choices)).sum()
    }

    fn of_edge(&self, edge: &Edge, choices: &[usize]) -> Price {
        let [first, second] = edge.ends;
        edge.prices[choices[first] * self.options[second].len() + choices[second]]
    }
}
