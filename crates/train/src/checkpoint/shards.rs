//! Parts of tensors in files, one file per rank, from which any other parts can be read.
//!
//! A part has a name such as `block.0.mlp.up.weight@0,16`: the tensor, and the position at which the part
//! begins in it. A reader asks for its own parts; each is assembled from the parts in the files. So a
//! checkpoint of one plan can be loaded under any other.

use std::ops::Range;

use thinwire_checkpoint::Error;
use thinwire_model::Part;
use thinwire_wire::Rank;

use super::files::{MODEL, OPTIMIZER, Tensors, part_name, shard_file};
use super::load::Checkpoint;
use crate::Parameter;

/// A part of a tensor that a reader asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Name of the tensor.
    pub name: String,
    /// The range of the part in each dimension of the tensor.
    pub parts: Vec<Part>,
    /// Elements of the part; 0 until they are found.
    pub values: Vec<f32>,
    found: usize,
    taken: Vec<Vec<Range<usize>>>,
}

impl Wanted {
    /// Returns a part without any elements found yet.
    pub fn new(name: String, parts: Vec<Part>) -> Wanted {
        let elements = parts.iter().map(|part| part.length).product();
        Wanted { name, parts, values: vec![0.0; elements], found: 0, taken: Vec::new() }
    }

    /// Copies the elements that another part shares with this one; returns false if some of them were
    /// found before.
    fn take(&mut self, start: &[usize], shape: &[usize], values: &[f32]) -> bool {
        let dims = self.parts.iter().zip(start.iter().zip(shape));
        let overlap = dims.map(|(part, (start, length))| {
            let from = part.start.max(*start);
            from..(part.start + part.length).min(start.saturating_add(*length))
        });
        let overlap: Vec<_> = overlap.collect();
        if overlap.iter().any(|range| range.is_empty()) {
            return true;
        }
        let meets = |(a, b): (&Range<usize>, &Range<usize>)| a.start < b.end && b.start < a.end;
        if self.taken.iter().any(|other| other.iter().zip(&overlap).all(meets)) {
            return false;
        }
        self.taken.push(overlap.clone());
        let Some((last, outer)) = self.parts.split_last() else {
            self.values.copy_from_slice(values);
            self.found += values.len();
            return true;
        };
        let row = overlap[outer.len()].clone();
        let rows: usize = overlap[..outer.len()].iter().map(|range| range.len()).product();
        for index in 0..rows {
            let (mut rest, mut to, mut from) = (index, 0, 0);
            let (mut to_stride, mut from_stride) = (last.length, shape[outer.len()]);
            for dim in (0..outer.len()).rev() {
                let at = overlap[dim].start + rest % overlap[dim].len();
                rest /= overlap[dim].len();
                to += (at - outer[dim].start) * to_stride;
                from += (at - start[dim]) * from_stride;
                to_stride *= outer[dim].length;
                from_stride *= shape[dim];
            }
            let to = to + row.start - last.start;
            let from = from + row.start - start[outer.len()];
            self.values[to..to + row.len()].copy_from_slice(&values[from..from + row.len()]);
            self.found += row.len();
        }
        true
    }
}

impl Checkpoint {
    /// Returns whole parameters, from the parts of all ranks.
    pub(super) fn whole(&self, parameters: &[Parameter]) -> Result<Vec<Vec<f32>>, Error> {
        let wanted = parameters.iter().map(|Parameter { name, shape }| {
            let parts = shape.iter().map(|length| Part { start: 0, length: *length });
            Wanted::new(name.clone(), parts.collect())
        });
        let mut wanted: Vec<Wanted> = wanted.collect();
        self.fill(&mut wanted)?;
        Ok(wanted.into_iter().map(|part| part.values).collect())
    }

    /// Fills parts from the files of all ranks, one file after the other, or from the files of the whole
    /// model.
    ///
    /// # Errors
    /// If a file is damaged, or the files do not contain the whole of a part.
    pub fn fill(&self, wanted: &mut [Wanted]) -> Result<(), Error> {
        let files: Vec<String> = match self.is_sharded() {
            true => (0..self.progress().world).map(|rank| shard_file(Rank(rank))).collect(),
            false => vec![MODEL.to_owned(), OPTIMIZER.to_owned()],
        };
        for file in files {
            let tensors = self.read(&file)?;
            let parts = if self.is_sharded() { tensors } else { as_parts(tensors) };
            take_all(wanted, &parts).map_err(|why| self.damaged(&file, &why))?;
        }
        let missing = wanted.iter().find(|part| part.found != part.values.len());
        missing.map_or(Ok(()), |part| {
            let (found, expected) = (part.found, part.values.len());
            let why = format!("{found} elements of {}, expected {expected}", part.name);
            Err(self.damaged("", &why))
        })
    }
}

/// Names whole tensors as parts that begin at the tensors' first elements.
fn as_parts(tensors: Tensors) -> Tensors {
    let named = |(name, (shape, values)): (String, (Vec<usize>, Vec<f32>))| {
        (part_name(&name, &vec![0; shape.len()]), (shape, values))
    };
    tensors.into_iter().map(named).collect()
}

fn take_all(wanted: &mut [Wanted], tensors: &Tensors) -> Result<(), String> {
    for (name, (shape, values)) in tensors {
        let (tensor, start) =
            name.rsplit_once('@').ok_or_else(|| format!("'{name}' is no part"))?;
        let start = start.split(',').filter(|start| !start.is_empty()).map(str::parse::<usize>);
        let start: Vec<usize> =
            start.collect::<Result<_, _>>().map_err(|_| format!("'{name}' begins nowhere"))?;
        for part in wanted.iter_mut().filter(|part| part.name == tensor) {
            let ndim = part.parts.len();
            if start.len() != ndim || shape.len() != ndim {
                return Err(format!("'{name}' has shape {shape:?}, expected {ndim} dimensions"));
            }
            if !part.take(&start, shape, values) {
                return Err(format!("'{name}' overlaps another part, expected each element once"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the elements of a part of a tensor of this shape, in which every element equals its position.
    fn part(shape: [usize; 2], parts: [Part; 2]) -> Vec<f32> {
        let row = |i| (0..parts[1].length).map(move |j| (i, parts[1].start + j));
        let places = (0..parts[0].length).flat_map(|i| row(parts[0].start + i));
        places.map(|(i, j)| (i * shape[1] + j) as f32).collect()
    }

    #[test]
    fn parts_are_put_together_from_any_others() {
        let shape = [6, 8];
        let cut = |start, length| Part { start, length };
        let mut tensors = Tensors::new();
        for (rows, columns) in [(0, 0), (0, 4), (3, 0), (3, 4)] {
            let values = part(shape, [cut(rows, 3), cut(columns, 4)]);
            tensors.insert(part_name("w", &[rows, columns]), (vec![3, 4], values));
        }
        for parts in [[cut(0, 6), cut(0, 8)], [cut(2, 2), cut(0, 8)], [cut(1, 4), cut(3, 2)]] {
            let mut wanted = [Wanted::new("w".to_owned(), parts.to_vec())];
            take_all(&mut wanted, &tensors).unwrap();
            assert_eq!(wanted[0].values, part(shape, parts));
            assert_eq!(wanted[0].found, wanted[0].values.len());
        }
        // A part that stands in two files does not make up for one that stands in none.
        let again = tensors.remove(&part_name("w", &[3, 4])).unwrap();
        tensors.insert(part_name("w", &[2, 4]), again);
        let mut wanted = [Wanted::new("w".to_owned(), vec![cut(0, 6), cut(0, 8)])];
        assert!(take_all(&mut wanted, &tensors).unwrap_err().contains("overlaps another part"));
        let huge = Tensors::from([(part_name("w", &[usize::MAX, 0]), (vec![1, 8], vec![0.0; 8]))]);
        take_all(&mut wanted, &huge).unwrap();
        let mut other = [Wanted::new("w".to_owned(), vec![cut(0, 6)])];
        assert!(take_all(&mut other, &tensors).unwrap_err().contains("expected 1 dimensions"));
    }
}
