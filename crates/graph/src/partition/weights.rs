//! What parts are asked for, and what vertices weigh in them.

use crate::error::Error;

/// Largest number of parts.
const PARTS_MAX: u32 = 1 << 16;

/// How parts should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Number of parts.
    pub parts: u32,
    /// Hops of a batch: layers of the model.
    pub hops: u32,
    /// Largest weight of a part by the mean; 1.02 allows 2 % more.
    pub balance_max: f64,
    /// Seed of random choices.
    pub seed: u64,
}

/// Weights of vertices: 1, and for a training vertex its share of all vertices besides, so that training
/// vertices weigh as much as all vertices.
pub(super) struct Weights {
    /// Whether a vertex is a training vertex.
    pub is_training: Vec<bool>,
    /// Further weight of a training vertex.
    pub bonus: f64,
}

impl Weights {
    /// Checks a training set and options.
    pub fn new(vertices: u32, training: &[u32], options: &Options) -> Result<Weights, Error> {
        let parts = options.parts;
        let most = vertices.min(PARTS_MAX);
        if parts == 0 || parts > most {
            return Err(Error::value(format!(
                "{parts} parts of {vertices} vertices, expected 1 to {most}"
            )));
        }
        if options.balance_max.is_nan() || options.balance_max < 1.0 {
            return Err(Error::value(format!(
                "balance {}, expected 1 or more",
                options.balance_max
            )));
        }
        if training.is_empty() {
            let hint = "give a graph with a split, or a share of vertices to train on";
            return Err(Error::value("no training vertices".to_owned()).with_hint(hint));
        }
        let mut is_training = vec![false; vertices as usize];
        for vertex in training {
            match is_training.get_mut(*vertex as usize) {
                None => {
                    return Err(Error::vertex("the training set", u64::from(*vertex), vertices));
                }
                Some(true) => {
                    return Err(Error::value(format!(
                        "training vertex {vertex} is listed twice, expected once"
                    )));
                }
                Some(is_training) => *is_training = true,
            }
        }
        Ok(Weights { is_training, bonus: f64::from(vertices) / training.len() as f64 })
    }

    /// Returns the weight of a vertex.
    pub fn of(&self, vertex: usize) -> f64 {
        1.0 + if self.is_training[vertex] { self.bonus } else { 0.0 }
    }

    /// Returns the weight of all vertices.
    pub fn total(&self) -> f64 {
        2.0 * self.is_training.len() as f64
    }
}
