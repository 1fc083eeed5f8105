//! Numbers of a batch's vertices, in the order of their first occurrence.

/// Table of the numbers that the vertices of the current batch have.
///
/// An entry counts only if it has the stamp of the current batch, so the table need not be cleared
/// between batches.
#[derive(Clone, Debug)]
pub struct Numbering {
    /// Stamp and number of every vertex.
    entries: Vec<[u32; 2]>,
    stamp: u32,
}

impl Numbering {
    /// Creates a table for the vertices `0..vertices`, with 8 bytes each.
    pub fn new(vertices: u32) -> Numbering {
        Numbering { entries: vec![[0; 2]; vertices as usize], stamp: 0 }
    }

    /// Returns the number of vertices in the table.
    pub fn vertices(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Forgets all numbers.
    pub fn clear(&mut self) {
        if self.stamp == u32::MAX {
            self.entries.fill([0; 2]);
            self.stamp = 0;
        }
        self.stamp += 1;
    }

    /// Returns the number of a vertex, if it has one.
    pub fn get(&self, vertex: u32) -> Option<u32> {
        let [stamp, number] = self.entries[vertex as usize];
        (stamp == self.stamp).then_some(number)
    }

    /// Replaces vertices by their numbers. A new vertex gets the next number and is added to `vertices`.
    pub fn number(&mut self, ids: &mut [u32], vertices: &mut Vec<u32>) {
        let mut count = vertices.len();
        vertices.resize(count + ids.len(), 0);
        // Without branches on what the table has, so that its memory accesses overlap.
        for id in ids {
            let entry = &mut self.entries[*id as usize];
            let fresh = entry[0] != self.stamp;
            let number = if fresh { count as u32 } else { entry[1] };
            *entry = [self.stamp, number];
            vertices[count] = *id;
            count += usize::from(fresh);
            *id = number;
        }
        vertices.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_that_run_out_forget_the_table() {
        let mut numbering = Numbering::new(3);
        let mut vertices = Vec::new();
        numbering.clear();
        numbering.number(&mut [2, 1], &mut vertices);
        assert_eq!(
            (numbering.get(2), numbering.get(1), numbering.get(0)),
            (Some(0), Some(1), None)
        );
        numbering.stamp = u32::MAX;
        numbering.clear();
        assert_eq!((numbering.stamp, numbering.get(2)), (1, None));
    }
}
