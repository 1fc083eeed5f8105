//! Ids of vertices in the data from which a graph was imported.

use std::fmt;

/// Ids of all vertices, by the vertices' present numbers: whole numbers, or texts.
///
/// If an import has numbered the vertices, ids are in ascending order (numbers by value, texts by their
/// bytes) until the graph is partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Whole numbers.
    Numbers(Vec<i64>),
    /// Texts.
    Texts(Vec<String>),
}

impl Ids {
    /// Returns the number of vertices.
    pub fn len(&self) -> usize {
        match self {
            Ids::Numbers(numbers) => numbers.len(),
            Ids::Texts(texts) => texts.len(),
        }
    }

    /// Returns whether there are no vertices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ids of some vertices, in their order.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn of(&self, vertices: &[u32]) -> Ids {
        match self {
            Ids::Numbers(numbers) => {
                Ids::Numbers(vertices.iter().map(|vertex| numbers[*vertex as usize]).collect())
            }
            Ids::Texts(texts) => {
                Ids::Texts(vertices.iter().map(|vertex| texts[*vertex as usize].clone()).collect())
            }
        }
    }

    /// Returns the id of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn get(&self, vertex: u32) -> Id<'_> {
        match self {
            Ids::Numbers(numbers) => Id::Number(numbers[vertex as usize]),
            Ids::Texts(texts) => Id::Text(&texts[vertex as usize]),
        }
    }
}

/// Id of a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(&'a str),
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Number(number) => number.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}
