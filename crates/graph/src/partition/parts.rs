//! The part of every vertex.

use crate::error::Error;

/// Part of every vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    count: u32,
    of: Vec<u16>,
}

impl Parts {
    /// Creates a partition from the part of every vertex.
    ///
    /// # Errors
    /// If a part is not below `count`.
    pub fn new(count: u32, of: Vec<u16>) -> Result<Parts, Error> {
        match of.iter().find(|part| u32::from(**part) >= count) {
            None => Ok(Parts { count, of }),
            Some(part) => {
                Err(Error::value(format!("part {part} of a vertex, expected parts of 0..{count}")))
            }
        }
    }

    /// Returns the number of parts.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the part of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn of(&self, vertex: u32) -> u32 {
        u32::from(self.of[vertex as usize])
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        self.of.len() as u32
    }

    /// Deals vertices over their parts; they stay in order.
    pub fn deal(&self, vertices: &[u32]) -> Vec<Vec<u32>> {
        let mut dealt = vec![Vec::new(); self.count as usize];
        vertices.iter().for_each(|vertex| dealt[self.of(*vertex) as usize].push(*vertex));
        dealt
    }
}
