//! Operators that keep all elements, or add some up.

use thinwire_model::{Array, Broadcast, Pack, Region, Reshape, Sum, Summed, Transpose, Unpack};

use super::Reference;

/// Returns the index of the sum that an element of the whole belongs to.
fn place(sum: &Sum, at: &[usize]) -> Vec<usize> {
    let place = |(dim, i): (usize, &usize)| match sum.dims.get(dim).copied().unwrap_or(Summed::No) {
        Summed::No => Some(*i),
        Summed::ToOne => Some(0),
        Summed::Away => None,
    };
    at.iter().enumerate().filter_map(place).collect()
}

impl Reference for Sum {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let mut y = Array::full(region.output_shape(0), 0.0);
        Array::each_index(inputs[0].shape(), |at| y.add(&place(self, at), inputs[0].at(at)));
        vec![y]
    }
}

impl Reference for Broadcast {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        vec![Array::from_fn(region.output_shape(0), |at| inputs[0].at(&place(&self.sum, at)))]
    }
}

impl Reference for Reshape {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        vec![Array::new(region.output_shape(0), inputs[0].values().to_vec())]
    }
}

impl Reference for Transpose {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let place = |letter: char| self.input.chars().position(|other| other == letter);
        let order: Vec<usize> = self.output.chars().filter_map(place).collect();
        let mut from = vec![0; order.len()];
        let y = Array::from_fn(region.output_shape(0), |at| {
            order.iter().zip(at).for_each(|(dim, i)| from[*dim] = *i);
            inputs[0].at(&from)
        });
        vec![y]
    }
}

/// Maps an index within a section to the index within the whole dimension.
fn section(unpack: &Unpack, index: usize, local: usize) -> impl Fn(usize) -> usize + '_ {
    let before: usize = unpack.sections[..index].iter().sum();
    let (length, whole) = (unpack.sections[index], unpack.sections.iter().sum::<usize>());
    debug_assert_eq!(local % length.max(1), 0);
    move |place| place / length * whole + before + place % length
}

impl Reference for Unpack {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let part = |index: usize| {
            let shape = region.output_shape(index);
            let from = section(self, index, shape[self.dim]);
            Array::from_fn(shape, |at| {
                let mut place = at.to_vec();
                place[self.dim] = from(at[self.dim]);
                inputs[0].at(&place)
            })
        };
        (0..self.sections.len()).map(part).collect()
    }
}

impl Reference for Pack {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let Pack { dim, pieces, sections } = self.clone();
        let unpack = Unpack { dim, pieces, sections };
        let mut y = Array::full(region.output_shape(0), 0.0);
        for (index, input) in inputs.iter().enumerate() {
            let to = section(&unpack, index, input.shape()[self.dim]);
            Array::each_index(input.shape(), |at| {
                let mut place = at.to_vec();
                place[self.dim] = to(at[self.dim]);
                y.set(&place, input.at(at));
            });
        }
        vec![y]
    }
}
